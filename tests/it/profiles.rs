//! The shipped profiles against the table of facts that they were made from, row by row.

use std::collections::BTreeMap;
use std::path::Path;

use kneeboard::profile::{Facts, Figure, Kind, Platform, catalog};

use crate::shared;

type Row = BTreeMap<String, String>;

fn rows(test: &str, file: &str) -> Option<Vec<Row>> {
    let path = shared::data_set(test, "facts")?.join(file);
    let mut reader = csv::Reader::from_path(&path).unwrap();
    Some(reader.deserialize().map(Result::unwrap).collect())
}

/// A number of the table; empty = unknown.
fn number(row: &Row, column: &str) -> Option<f64> {
    let text = row[column].as_str();
    (!text.is_empty()).then(|| text.parse().unwrap_or_else(|e| panic!("{column} {text}: {e}")))
}

#[track_caller]
fn same(what: &str, found: Option<f64>, expected: Option<f64>) {
    match (found, expected) {
        (Some(a), Some(b)) => assert!((a - b).abs() <= 1e-9 * b.abs(), "{what}: {a}, not {b}"),
        (a, b) => assert_eq!(a, b, "{what}"),
    }
}

fn value(figure: &Option<Figure<f64>>) -> Option<f64> {
    figure.as_ref().map(|f| f.value)
}

/// What software sees of the memory where the table says so, the stated amount in its unit otherwise.
fn memory(row: &Row) -> f64 {
    let text = format!("{} {}", row["note"], row["source"]);
    let seen = text.split(" MiB").next().and_then(|before| {
        let start = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
        before[start..].parse::<f64>().ok().filter(|mib| *mib > 1e4)
    });
    let unit = match row["mem_unit"].as_str() {
        "GiB" => f64::from(1 << 30),
        "GB" => 1e9,
        other => panic!("{other}"),
    };
    seen.filter(|_| text.contains(" MiB"))
        .map_or(number(row, "mem").unwrap() * unit, |mib| mib * f64::from(1 << 20))
}

#[test]
fn every_accelerator_of_the_facts_has_its_figures() {
    let Some(rows) = rows(
        "every_accelerator_of_the_facts_has_its_figures",
        "accelerators.csv",
    ) else {
        return;
    };
    assert_eq!(rows.len(), 34);
    for row in &rows {
        let name = &row["name"];
        let a = catalog::accelerator(name, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
        let at = |field: &str| format!("{name}, {field}");
        same(
            &at("memory"),
            a.memory_bytes.as_ref().map(|f| f.value as f64),
            Some(memory(row)),
        );
        for (field, figure, column) in [
            ("bandwidth", &a.memory_bandwidth_gb_s, "mem_bw_gb_s"),
            ("bf16", &a.bf16_tflops, "bf16_dense_tflops"),
            ("fp8", &a.fp8_tflops, "fp8_dense_tflops"),
            ("int8", &a.int8_tops, "int8_dense_tops"),
            ("fp4", &a.fp4_tflops, "fp4_dense_tflops"),
            ("scale-up", &a.scaleup_gb_s, "scaleup_gb_s_per_dir"),
            ("PCIe", &a.pcie_gb_s, "pcie_gb_s_per_dir"),
            ("TDP", &a.tdp_w, "tdp_w"),
            ("idle", &a.idle_w, "idle_w"),
        ] {
            same(&at(field), value(figure), number(row, column));
        }
        let on_chip = a.on_chip_bytes.as_ref().map(|f| f.value as f64);
        same(
            &at("on chip"),
            on_chip,
            number(row, "onchip_mib").map(|m| m * f64::from(1 << 20)),
        );
        let text = |f: &Option<Figure<String>>| f.as_ref().map_or(String::new(), |f| f.value.clone());
        assert_eq!(
            text(&a.scaleup_link),
            row["scaleup_link"].replace("none", ""),
            "{name}"
        );
        assert_eq!(text(&a.scaleup_topology), row["scaleup_topology"], "{name}");
        if !row["unverified_fields"].is_empty() {
            assert!(a.figures().iter().any(|f| f.doubt.is_some()), "{name}");
        }
        let vendor = row["vendor"].as_str();
        let expected = match a.platform {
            Platform::A100 | Platform::Blackwell | Platform::Cuda => "NVIDIA",
            Platform::Rocm => "AMD",
            Platform::Gaudi => "Intel",
            Platform::Tpu => "Google",
            Platform::Neuron => "AWS",
            Platform::Cpu => "none",
        };
        assert_eq!(vendor, expected, "{name}");
    }
}

/// Conflicts that cost a wrong answer if they went unsaid: both values are in the profile.
#[test]
fn conflicts_are_stated_with_both_values() {
    for (name, field, other) in [
        ("rtx-pro-6000", "memory_bandwidth_gb_s", "1792"),
        ("l40s", "fp8_tflops", "1466"),
        ("b200-sxm", "memory_bandwidth_gb_s", "8.0"),
        ("b300-sxm", "int8_tops", "4500"),
        ("gb200", "bf16_tflops", "2250"),
        ("trn1", "memory_bandwidth_gb_s", "GiB/s"),
        ("tpu-v5e", "memory_bandwidth_gb_s", "859"),
        ("gemma-3-4b", "heads", "16"),
        ("h200-sxm", "memory_bytes", "141"),
    ] {
        let profile = catalog::any(name).unwrap();
        let figures = profile.figures();
        let figure = figures.iter().find(|f| f.name == field).unwrap();
        assert!(
            figure.doubt.unwrap().contains(other),
            "{name}, {field}: {figure:?}"
        );
    }
}

#[test]
fn every_instance_of_the_facts_has_its_figures() {
    let Some(rows) = rows("every_instance_of_the_facts_has_its_figures", "instances.csv") else {
        return;
    };
    assert_eq!(rows.len(), 43);
    for row in &rows {
        let name = &row["instance"];
        let found = catalog::instance(name, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
        let device = catalog::accelerator(&row["accelerator"], Path::new("")).unwrap();
        assert_eq!(found.accelerator.value, device.name, "{name}");
        same(name, Some(f64::from(found.count.value)), number(row, "count"));
        same(name, value(&found.nic_gbps), number(row, "nic_gbps"));
        same(
            name,
            value(&found.on_demand_usd_h),
            number(row, "on_demand_usd_h"),
        );
        if let (Some(a), Some(b)) = (found.usd_per_accelerator_h(), number(row, "usd_per_accel_h")) {
            assert!((a - b).abs() < 1e-4, "{name}: {a}, not {b}");
        }
        assert_eq!(found.region.as_deref(), Some(row["region"].as_str()), "{name}");
        if row["note"] == "unverified" {
            assert!(found.on_demand_usd_h.unwrap().doubt.is_some(), "{name}");
        }
    }
}

#[test]
fn every_model_of_the_facts_has_its_figures() {
    let Some(rows) = rows("every_model_of_the_facts_has_its_figures", "models.csv") else {
        return;
    };
    assert_eq!(rows.len(), 50);
    for row in &rows {
        let name = &row["name"];
        let m = catalog::model(&row["hf_repo"], Path::new("")).unwrap_or_else(|e| panic!("{e}"));
        let count = |field: &str, found: u32, column: &str| {
            same(
                &format!("{name}, {field}"),
                Some(f64::from(found)),
                number(row, column).or(Some(0.0)),
            );
        };
        count("layers", m.layers.value, "layers");
        count("hidden", m.hidden.value, "hidden");
        count("intermediate", m.intermediate.value, "intermediate");
        count("heads", m.heads.value, "heads");
        count("kv_heads", m.kv_heads.value, "kv_heads");
        count("head_dim", m.head_dim.value, "head_dim");
        count("vocab", m.vocab.value, "vocab");
        count("max_positions", m.max_positions.value, "max_positions");
        count("MoE layers", m.moe_layers(), "n_moe_layers");
        assert_eq!(
            m.tied_embeddings.value.to_string(),
            row["tie_embeddings"],
            "{name}"
        );
        let moe = m.moe.as_ref();
        let of_moe = |f: fn(&kneeboard::profile::Moe) -> u32| moe.map_or(0, f);
        count("experts", of_moe(|e| e.experts.value), "n_experts");
        count("top-k", of_moe(|e| e.experts_per_token.value), "top_k");
        count("width", of_moe(|e| e.intermediate.value), "moe_intermediate");
        count("shared", of_moe(|e| e.shared_experts.value), "n_shared_experts");
        count(
            "shared width",
            of_moe(|e| e.shared_intermediate.value),
            "shared_intermediate",
        );
        let rank = m.mla.as_ref().map_or(0, |l| l.kv_lora_rank.value);
        count("latent rank", rank, "mla_kv_lora");
        assert_eq!(m.window.is_some(), !row["window"].is_empty(), "{name}");
        if let (Some(window), Ok(tokens)) = (&m.window, row["window"].parse::<u32>()) {
            assert_eq!(window.tokens.value, tokens, "{name}");
        }
        let billions = |what: &str, found: u64, column: &str, within: f64| {
            let expected = number(row, column).unwrap();
            let found = found as f64 / 1e9;
            assert!(
                (found - expected).abs() <= within,
                "{name}, {what}: {found}, not {expected}"
            );
        };
        billions("derived", m.parameters.value, "params_total_b_derived", 0.005_01);
        let active = m
            .active_parameters
            .as_ref()
            .map_or(m.parameters.value, |f| f.value);
        billions("derived active", active, "params_active_b_derived", 0.005_01);
        assert_eq!(active, m.active_parameters_from_dimensions(), "{name}");
        let published = m.published_parameters.as_ref().unwrap().value;
        billions("published", published, "params_total_b_published", 1e-6);
        let attention = m.attention_parameters_per_layer() as f64 / 1e6;
        let expected = number(row, "attn_params_per_layer_m").unwrap();
        assert!((attention - expected).abs() < 0.005_01, "{name}: {attention}");
        // The table counts every layer, windowed ones too, in bf16.
        let cache = kneeboard::kv::sizing::kv_bytes_per_token(&m, 1);
        same(name, Some(cache as f64), number(row, "kv_bytes_per_token_bf16"));
        assert_eq!(m.layers.doubt.is_some(), row["status"] != "verified", "{name}");
    }
}

#[test]
fn the_catalog_holds_what_was_asked_for() {
    let count = |kind| catalog::current().entries(Some(kind)).count();
    assert!(count(Kind::Accelerator) >= 35, "34 and the CPU of the captures");
    assert!(count(Kind::Model) >= 51, "50 and the model of the captures");
    assert!(count(Kind::Instance) >= 43);
    assert!(count(Kind::Engine) >= 1);
}
