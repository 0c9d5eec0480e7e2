//! The shipped fits can all be read, are sealed, and speak for what their names say.

use std::path::Path;

use kneeboard::profile::catalog;
use kneeboard::scenario::machine::nearest_fit;
use kneeboard::steptime::roofline_fit::Door;
use kneeboard::steptime::{AnyFit, Deployment, StaticShapes};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_shipped_fit_is_readable_and_says_how_it_was_made() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("calibration/fits")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if let AnyFit::Roofline(fit) = AnyFit::read(&path).unwrap() {
            if fit.door != Door::Kernels {
                assert_eq!(fit.name, name);
            }
            assert!(fit.command.starts_with("kneeboard calibrate "), "{}", fit.command);
            assert!(
                !fit.command.split_whitespace().any(|word| word.starts_with('/')),
                "{}",
                fit.command
            );
            assert!(
                !fit.speaks_for.accelerators.is_empty() && !fit.draws.is_empty(),
                "{name}"
            );
        }
        if let AnyFit::StaticShape(fit) = AnyFit::read(&path).unwrap() {
            assert_eq!(fit.name, name);
            assert!(
                fit.command.starts_with("kneeboard calibrate programs "),
                "{}",
                fit.command
            );
            assert!(!fit.command.contains(" /"), "{}", fit.command);
            assert!(
                !fit.programs.is_empty() && !fit.held_out.is_empty() && !fit.draws.is_empty(),
                "{name}"
            );
            assert!(fit.notes.iter().any(|n| n.starts_with("evidence: ")), "{name}");
        }
        names.push(name);
    }
    for wanted in [
        "vllm-cpu",
        "h100-bf16-vllm",
        "h200-fp8-vllm",
        "rtxpro6000-bf16-vllm",
        "a100-bf16",
        "l40s-bf16",
        "trn1-neuron",
        "trn2-neuron",
        "inf2-neuron",
    ] {
        assert!(
            names.iter().any(|n| n == wanted),
            "{wanted} is missing of {names:?}"
        );
    }
}

#[test]
fn the_nearest_fit_is_of_the_device_first_and_else_of_the_most_similar() {
    let near = |accelerator: &str, model: &str| {
        let deployment = Deployment::new(
            catalog::model(model, root()).unwrap(),
            catalog::accelerator(accelerator, root()).unwrap(),
        );
        let path = nearest_fit(&deployment, root()).unwrap();
        path.file_stem().unwrap().to_string_lossy().into_owned()
    };
    assert_eq!(near("h100-sxm", "llama-3.1-8b"), "h100-bf16-vllm");
    assert_eq!(near("a100-sxm-80gb", "llama-3.1-8b"), "a100-bf16");
    // No fit speaks for it: another device's is carried over.
    assert_eq!(near("a100-sxm-40gb", "llama-3.1-8b"), "a100-bf16");
}

#[test]
fn compiled_shapes_get_the_fit_of_their_device() {
    let near = |accelerator: &str| {
        let mut deployment = Deployment::new(
            catalog::model("llama-3.1-8b", root()).unwrap(),
            catalog::accelerator(accelerator, root()).unwrap(),
        );
        deployment.static_shapes = Some(StaticShapes {
            context_buckets: vec![1024],
            prefix_buckets: Vec::new(),
            strict: true,
            token_buckets: vec![1024],
            decode_batches: vec![4],
            on_device_sampling: true,
            asynchronous: false,
        });
        let path = nearest_fit(&deployment, root()).unwrap();
        path.file_stem().unwrap().to_string_lossy().into_owned()
    };
    for (accelerator, fit) in [
        ("trn1", "trn1-neuron"),
        ("trn2", "trn2-neuron"),
        ("inf2", "inf2-neuron"),
        ("trn3", "trn2-neuron"),
    ] {
        assert_eq!(near(accelerator), fit);
    }
}
