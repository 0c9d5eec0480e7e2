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

#[test]
fn wrong_cells_say_where_they_are() {
    let told = |line: &str, parts: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let header = "accelerator,model,tp,max_num_seqs,max_model_len,kind,bucket,rows,seconds,log_sd";
        std::fs::write(&path, format!("{header}\n{line}\n")).unwrap();
        let e = read_programs(&path).unwrap_err().to_string();
        for part in parts {
            assert!(e.contains(part), "no '{part}' in: {e}");
        }
    };
    told(
        "trn2,qwen3-8b,1,4,1024,token_genration,1024,,0.01,",
        &["line 2", "token_generation"],
    );
    told(
        "trn2,qwen3-8b,0,4,1024,token_generation,1024,,0.01,",
        &["line 2", "tp"],
    );
    told(
        "trn2,qwen3-8b,1,4,1024,token_generation,2048,,0.01,",
        &["bucket", "1024"],
    );
    told(
        "trn2,qwen3-8b,1,4,1024,token_generation,1024,8,0.01,",
        &["rows", "4"],
    );
    told("trn2,qwen3-8b,1,4,1024,token_generation,1024,,0,", &["seconds"]);
    told(
        "trn2,qwen3-8b,1,4,1024,token_generation,1024,,0.01,7",
        &["log_sd"],
    );
    told("trn9,qwen3-8b,1,4,1024,token_generation,1024,,0.01,", &["trn9"]);
}
