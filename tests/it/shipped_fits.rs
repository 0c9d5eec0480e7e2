//! The shipped fits can all be read, are sealed, and speak for what their names say.

use std::path::Path;

use kneeboard::profile::catalog;
use kneeboard::scenario::machine::nearest_fit;
use kneeboard::steptime::roofline_fit::Door;
use kneeboard::steptime::{AnyFit, Deployment};

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
        names.push(name);
    }
    for wanted in [
        "vllm-cpu",
        "h100-bf16-vllm",
        "h200-fp8-vllm",
        "rtxpro6000-bf16-vllm",
        "a100-bf16",
        "l40s-bf16",
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
