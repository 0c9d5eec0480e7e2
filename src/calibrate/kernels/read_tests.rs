use super::*;
use std::fs::File;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// One column of a table to write.
enum Column {
    Text(&'static str, Vec<&'static str>),
    Whole(&'static str, Vec<i64>),
    Real(&'static str, Vec<f64>),
}

fn write(path: &Path, columns: &[Column]) {
    let fields: Vec<String> = columns
        .iter()
        .map(|c| match c {
            Column::Text(name, _) => format!("required binary {name} (UTF8);"),
            Column::Whole(name, _) => format!("required int64 {name};"),
            Column::Real(name, _) => format!("required double {name};"),
        })
        .collect();
    let schema = parse_message_type(&format!("message kernels {{ {} }}", fields.join(" "))).unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::SNAPPY)
        .build();
    let mut writer = SerializedFileWriter::new(
        File::create(path).unwrap(),
        Arc::new(schema),
        Arc::new(properties),
    )
    .unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in columns {
        let mut out = group.next_column().unwrap().unwrap();
        match column {
            Column::Text(_, v) => {
                let values: Vec<ByteArray> = v.iter().map(|t| ByteArray::from(*t)).collect();
                out.typed::<ByteArrayType>()
                    .write_batch(&values, None, None)
                    .unwrap();
            }
            Column::Whole(_, v) => {
                out.typed::<Int64Type>().write_batch(v, None, None).unwrap();
            }
            Column::Real(_, v) => {
                out.typed::<DoubleType>().write_batch(v, None, None).unwrap();
            }
        }
        out.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn products(latency: Vec<f64>) -> Vec<Column> {
    let n = latency.len();
    vec![
        Column::Text("device", vec!["Card A"; n]),
        Column::Text("gemm_dtype", vec!["bfloat16"; n]),
        Column::Whole("m", vec![16; n]),
        Column::Whole("n", vec![4096; n]),
        Column::Whole("k", vec![1024; n]),
        Column::Real("latency", latency),
    ]
}

fn refused(folder: &Path, parts: &[&str]) {
    let error = read_folder(folder).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "no '{part}' in {error}");
    }
}

#[test]
fn equal_keys_become_their_median_and_the_newest_version_counts() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("gemm/vllm/0.9.0/gemm_perf.parquet"),
        &products(vec![99.0]),
    );
    write(
        &dir.path().join("gemm/vllm/0.24.0/gemm_perf.parquet"),
        &products(vec![0.01, 0.05, 0.02]),
    );
    let rows = read_folder(dir.path()).unwrap();
    let expected = Gemm {
        dtype: "bfloat16".into(),
        m: 16.0,
        n: 4096.0,
        k: 1024.0,
        seconds: 0.02 * 1e-3,
    };
    assert_eq!(rows.gemm, [expected]);
    assert_eq!(rows.devices.iter().collect::<Vec<_>>(), ["Card A"]);
    assert_eq!(rows.tables.len(), 2);
    assert!(rows.tables[0].left_out.is_some() && rows.tables[0].file.contains("0.9.0"));
    assert_eq!((rows.tables[1].rows, rows.tables[1].used), (3, 1));
}

#[test]
fn messages_are_elements_and_eager_rows_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("custom_allreduce_perf.parquet"),
        &[
            Column::Text("backend", vec!["vllm_graph", "vllm_eager"]),
            Column::Whole("num_gpus", vec![4, 4]),
            Column::Whole("message_size", vec![1024, 1024]),
            Column::Real("latency", vec![0.005, 0.023]),
        ],
    );
    let rows = read_folder(dir.path()).unwrap();
    let expected = AllReduce {
        ranks: 4,
        bytes: 2048.0,
        seconds: 0.005 * 1e-3,
    };
    assert_eq!(rows.all_reduce, [expected]);
}

#[test]
fn a_decode_row_looks_at_its_context_and_itself_and_windows_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("generation_attention_perf.parquet"),
        &[
            Column::Text("kv_cache_dtype", vec!["fp8", "fp8"]),
            Column::Whole("batch_size", vec![2, 2]),
            Column::Whole("isl", vec![1, 1]),
            Column::Whole("step", vec![1023, 1023]),
            Column::Whole("num_heads", vec![32, 32]),
            Column::Whole("num_key_value_heads", vec![8, 8]),
            Column::Whole("head_dim", vec![128, 128]),
            Column::Whole("window_size", vec![0, 128]),
            Column::Real("latency", vec![0.015, 0.012]),
        ],
    );
    let rows = read_folder(dir.path()).unwrap();
    let expected = Attention {
        kv_dtype: "fp8".into(),
        sequences: 2.0,
        tokens: 1024.0,
        heads: 32.0,
        kv_heads: 8.0,
        head_dim: 128.0,
        seconds: 0.015 * 1e-3,
    };
    assert_eq!(rows.generation, [expected]);
}

#[test]
fn files_that_are_no_tables_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gemm_perf.parquet");
    refused(dir.path(), &["no kernel table", "gemm_perf.parquet"]);
    refused(&dir.path().join("absent"), &["absent", "cannot be listed"]);

    std::fs::write(&path, "").unwrap();
    refused(dir.path(), &["gemm_perf.parquet", "is empty"]);
    std::fs::write(
        &path,
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    )
    .unwrap();
    refused(dir.path(), &["not a whole Parquet file", "fetch it again"]);

    // Cut off anywhere, or with any byte changed: an error or another table, but never the end of the program.
    write(&path, &products(vec![0.01, 0.05, 0.02]));
    let whole = std::fs::read(&path).unwrap();
    for end in (1..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..end]).unwrap();
        refused(dir.path(), &["not a whole Parquet file"]);
    }
    for place in 0..whole.len() {
        let mut changed = whole.clone();
        changed[place] ^= 0xff;
        std::fs::write(&path, &changed).unwrap();
        let _ = read_folder(dir.path());
    }
}

#[test]
fn missing_columns_bad_times_and_mixed_devices_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gemm_perf.parquet");
    for (latency, found) in [
        (f64::NAN, "NaN"),
        (-1.0, "-1"),
        (0.0, "'latency' is 0"),
        (f64::INFINITY, "inf"),
        (1e9, "milliseconds"),
    ] {
        write(&path, &products(vec![0.01, latency]));
        refused(dir.path(), &["row 2", "latency", found]);
    }
    let mut columns = products(vec![0.01]);
    columns.pop();
    columns.push(Column::Real("latancy", vec![0.01]));
    write(&path, &columns);
    refused(dir.path(), &["no column 'latency'", "did you mean 'latancy'"]);
    let mut columns = products(vec![0.01]);
    columns[2] = Column::Text("m", vec!["many"]);
    write(&path, &columns);
    refused(dir.path(), &["row 1", "'m' is", "a number above 0"]);
    let mut columns = products(vec![0.01, 0.01]);
    columns[0] = Column::Text("device", vec!["Card A", "Card B"]);
    write(&path, &columns);
    refused(dir.path(), &["several devices", "Card A, Card B"]);
    write(&path, &products(vec![]));
    refused(dir.path(), &["no rows"]);
}
