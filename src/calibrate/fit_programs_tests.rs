use std::path::Path;

use super::super::programs::read_programs;
use super::*;

/// A table of what a known vector of parameters makes of programs of two deployments.
fn made_up(truth: &StaticParameters) -> Vec<ProgramRow> {
    let mut text =
        String::from("accelerator,model,tp,max_num_seqs,max_model_len,kind,bucket,seconds,source\n");
    for (tp, rows) in [(1, 1), (1, 4), (2, 4), (4, 1), (4, 16), (8, 8)] {
        for bucket in [128, 256, 512, 2048] {
            text += &format!("trn2,qwen3-8b,{tp},{rows},2048,context_encoding,{bucket},1,made up\n");
        }
        text += &format!("trn2,qwen3-8b,{tp},{rows},2048,lone_prompt,256,1,made up\n");
        text += &format!("trn2,qwen3-8b,{tp},{rows},2048,token_generation,2048,1,made up\n");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("programs.csv");
    std::fs::write(&path, text).unwrap();
    let mut rows = read_programs(&path).unwrap();
    let predicted = Rows::new(rows.iter().collect()).unwrap().predict(truth);
    for (row, seconds) in rows.iter_mut().zip(predicted) {
        row.seconds = seconds;
    }
    rows
}

fn head() -> ProgramFitHead {
    ProgramFitHead {
        name: "test".into(),
        command: "none".into(),
        data: Vec::new(),
        engines: Vec::new(),
        notes: Vec::new(),
    }
}

#[test]
fn what_programs_can_tell_is_found_again() {
    let mut truth = StaticParameters::default();
    truth[StaticParam::MatrixCompute] = 0.7;
    truth[StaticParam::WeightBandwidth] = 0.55;
    truth[StaticParam::SlotLayerTime] = 8e-5;
    truth[StaticParam::CollectiveBandwidth] = 0.6;
    let fit = fit_programs(&made_up(&truth), &StaticPriors::default(), head(), true).unwrap();
    let value = |p: StaticParam| fit.values()[p];
    for (param, within) in [
        (StaticParam::MatrixCompute, 0.05),
        (StaticParam::WeightBandwidth, 0.05),
        (StaticParam::SlotLayerTime, 0.25),
        (StaticParam::CollectiveBandwidth, 0.15),
    ] {
        let off = (value(param) / truth[param]).ln().abs();
        assert!(off < within, "{} is {}", param.spec().name, value(param));
    }
    // Nothing was sampled on a host, so nothing is known of it.
    let sampling = &fit.parameters[StaticParam::SamplingTime as usize];
    assert!(!sampling.identified);
    assert!(fit.notes.iter().any(|n| n.contains("sampling_time")));
    let worst = fit
        .residuals
        .iter()
        .map(|e| e.rel_error.abs())
        .fold(0.0, f64::max);
    assert!(worst < 0.02, "{worst}");
    // Six deployments and, at four degrees of parallelism, four buckets each.
    let cases: BTreeSet<&str> = fit.held_out.iter().map(|e| e.of.as_str()).collect();
    assert_eq!(cases.len(), 6 + 4 * 4);
    let worst = fit.held_out.iter().map(|e| e.rel_error.abs()).fold(0.0, f64::max);
    assert!(worst < 0.1, "{worst}");
    let text = fit.to_yaml().unwrap();
    assert_eq!(StaticFit::from_text(&text, Path::new("f")).unwrap(), fit);
}

#[test]
fn programs_are_medians_and_lone_prompts_stand_in_without_their_front_end() {
    let rows = made_up(&StaticParameters::default());
    let best = StaticParameters::default();
    let sorted: Vec<&ProgramRow> = rows.iter().filter(|r| r.kind == RowKind::LonePrompt).collect();
    let program = &measured(&sorted, &best)[0];
    let front_end = best[StaticParam::FrontEndIn] + best[StaticParam::FrontEndOut];
    approx::assert_relative_eq!(
        program.seconds,
        sorted[0].seconds - front_end,
        max_relative = 1e-12
    );
    let mut twice = vec![rows[0].clone(); 3];
    twice[0].seconds = 0.1;
    twice[1].seconds = 0.3;
    twice[2].seconds = 0.2;
    let programs = measured(&twice.iter().collect::<Vec<_>>(), &best);
    assert_eq!(programs.len(), 1);
    approx::assert_relative_eq!(programs[0].seconds, 0.2);
    twice[0].log_sd = Some(0.2);
    assert_eq!(measured(&[&twice[0]], &best), []);
}

const HEADER: &str =
    "accelerator,model,tp,max_num_seqs,max_model_len,kind,bucket,rows,seconds,log_sd,n,logical_core,prefix";

#[track_caller]
fn refused(header: &str, lines: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.csv");
    std::fs::write(&path, format!("{header}\n{}\n", lines.join("\n"))).unwrap();
    let e = read_programs(&path).unwrap_err().to_string();
    for part in ["p.csv"].iter().chain(parts) {
        assert!(e.contains(part), "no '{part}' in: {e}");
    }
    for word in ["u32", "literal", "digit found"] {
        assert!(!e.contains(word), "'{word}' in: {e}");
    }
}

#[test]
fn wrong_cells_say_where_they_are() {
    let decode = |cells: &str| format!("trn2,qwen3-8b,1,4,1024,token_generation,1024,{cells}");
    for (line, parts) in [
        (
            "trn2,qwen3-8b,1,4,1024,token_genration,1024,,0.01,,,,".to_owned(),
            vec!["line 2", "token_generation"],
        ),
        (
            "trn2,qwen3-8b,0,4,1024,token_generation,1024,,0.01,,,,".to_owned(),
            vec!["line 2", "tp", "a whole number from 1 to"],
        ),
        (
            "trn2,qwen3-8b,two,4,1024,token_generation,1024,,0.01,,,,".to_owned(),
            vec!["line 2", "tp", "a whole number from 1 to"],
        ),
        (
            "trn2,qwen3-8b,1,4,1024,token_generation,2048,,0.01,,,,".to_owned(),
            vec!["bucket", "1024"],
        ),
        (decode("8,0.01,,,,"), vec!["rows", "from 1 to 4"]),
        (decode(",0,,,,"), vec!["seconds", "0.000001 to 3600"]),
        (
            decode(",1e-300,,,,"),
            vec!["line 2", "seconds", "1e-300", "0.000001"],
        ),
        (decode(",0.01,7,,,"), vec!["log_sd"]),
        (decode(",0.01,,0,,"), vec!["line 2, column n", "from 1 to"]),
        (decode(",0.01,,,3,"), vec!["logical_core", "from 1 to 2"]),
        (
            decode(",0.01,,,,junk"),
            vec!["prefix", "junk", "token_generation"],
        ),
        (
            "trn2,qwen3-8b,1,4,1024,context_encoding,1024,4,0.01,,,,".to_owned(),
            vec!["rows", "'4' says nothing of context_encoding"],
        ),
        (
            "trn9,qwen3-8b,1,4,1024,token_generation,1024,,0.01,,,,".to_owned(),
            vec!["line 2, column accelerator", "trn9", "did you mean"],
        ),
        (
            "trn2,qwen3-8bb,1,4,1024,token_generation,1024,,0.01,,,,".to_owned(),
            vec!["line 2, column model", "qwen3-8bb", "did you mean 'qwen3-8b'"],
        ),
        (
            "h100-sxm,qwen3-8b,1,4,1024,token_generation,1024,,0.01,,,,".to_owned(),
            vec!["line 2, column accelerator", "h100-sxm", "no AWS Neuron device"],
        ),
        (
            "trn1,qwen3-8b,1,4,1024,token_generation,1024,,0.01,,,2,".to_owned(),
            vec!["logical_core", "from 1 to 1"],
        ),
    ] {
        refused(HEADER, &[&line], &parts);
    }
    refused(
        &HEADER.replace("log_sd", "logsd"),
        &[&decode(",0.01,,,,")],
        &["line 1", "unknown column 'logsd'", "did you mean 'log_sd'?"],
    );
}

#[test]
fn rows_that_contradict_each_other_are_refused_with_both_lines() {
    let decode = |seconds: &str, log_sd: &str| {
        format!("trn2,qwen3-8b,1,4,1024,token_generation,1024,,{seconds},{log_sd},,,")
    };
    let (good, hundredfold) = (decode("0.036", ""), decode("3.6", ""));
    refused(
        HEADER,
        &[&good, &good, &hundredfold],
        &["lines 2 and 4", "0.036 s and 3.6 s", "within a factor of 1.5"],
    );
    let told = |lines: &[String]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        std::fs::write(&path, format!("{HEADER}\n{}\n", lines.join("\n"))).unwrap();
        read_programs(&path).map(|rows| rows.len())
    };
    // Measured twice, and a published figure with a scatter of its own.
    assert_eq!(
        told(&[good.clone(), decode("0.037", ""), decode("0.06", "0.2")]),
        Ok(3)
    );
    assert!(told(&[good, decode("0.1", "0.2")]).is_err());
}
