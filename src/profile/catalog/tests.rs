use super::*;
use crate::profile::check::problems;

#[test]
fn every_shipped_profile_is_valid_and_bears_its_file_name() {
    let catalog = Catalog::shipped();
    for entry in catalog.entries(None) {
        let profile = entry.load().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(profile.name(), entry.name);
        let odd = match &profile {
            Profile::Accelerator(p) => problems(&**p),
            Profile::Model(p) => problems(&**p),
            Profile::Instance(p) => {
                let device = &p.accelerator.value;
                assert!(catalog.find(Kind::Accelerator, device).is_some(), "{device}");
                problems(&**p)
            }
            Profile::Engine(p) => problems(&**p),
        };
        assert_eq!(odd, [], "{}", entry.name);
    }
    assert_eq!(catalog.entries(Some(Kind::Engine)).count(), 1);
}

#[test]
fn no_two_profiles_share_a_name_whatever_the_kind() {
    let catalog = Catalog::shipped();
    let mut seen = BTreeMap::new();
    for entry in catalog.entries(None) {
        let profile = entry.load().unwrap();
        let names = profile.aliases().into_iter().chain([profile.name()]);
        for name in names.map(str::to_ascii_lowercase) {
            let other = seen.insert(name.clone(), entry.name.clone());
            assert_eq!(other, None, "{name} is also {}", entry.name);
        }
    }
}

#[test]
fn a_slip_gets_the_nearest_name() {
    let e = accelerator("h100-smx", Path::new("")).unwrap_err();
    assert_eq!(e.nearest.as_deref(), Some("h100-sxm"));
    assert!(e.to_string().contains("known: h100-sxm"), "{e}");
    let e = model("meta-llama/Llama-2-70b-hff", Path::new("")).unwrap_err();
    assert!(e.to_string().contains("unknown name"), "{e}");
}

#[test]
fn repositories_driver_names_and_other_cases_are_found() {
    let here = Path::new("");
    for (name, expected) in [
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("META-LLAMA/llama-2-70B-HF", "llama-2-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen3-8B", "qwen3-8b"),
    ] {
        assert_eq!(model(name, here).unwrap().name, expected);
    }
    for (name, expected) in [
        ("H100-SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("RTX-PRO-6000-Blackwell-Server", "rtx-pro-6000"),
        ("Trainium1", "trn1"),
    ] {
        assert_eq!(accelerator(name, here).unwrap().name, expected);
    }
}

#[test]
fn contradicting_dimensions_and_unknown_sources_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = text("llama-3.1-8b").unwrap();
    for (from, to, place) in [
        ("layers: {value: 32", "layers: {value: 80", "parameters"),
        ("kv_heads: {value: 8", "kv_heads: {value: 7", "kv_heads"),
        (
            "vocab: {value: 128256, source: aic",
            "vocab: {value: 128256, source: nowhere",
            "vocab",
        ),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good, "{from}");
        let path = dir.path().join("m.yaml");
        fs::write(&path, bad).unwrap();
        let e = model("./m.yaml", dir.path()).unwrap_err();
        assert_eq!(e.place.as_deref(), Some(place), "{e}");
    }
}

#[test]
fn a_folder_of_the_users_wins_and_is_strict() {
    let dir = tempfile::tempdir().unwrap();
    let own = text("h100-sxm").unwrap().replace("value: 3350,", "value: 3000,");
    fs::create_dir(dir.path().join("accelerators")).unwrap();
    fs::write(dir.path().join("accelerators/h100-sxm.yaml"), &own).unwrap();
    let flat = text("qwen3-8b")
        .unwrap()
        .replace("name: qwen3-8b", "name: mine")
        .replace("Qwen/Qwen3-8B", "me/Mine");
    fs::write(dir.path().join("mine.yaml"), flat).unwrap();
    let catalog = Catalog::shipped().with_folder(dir.path()).unwrap();
    let device = catalog.accelerator("H100-SXM", Path::new("")).unwrap();
    assert!((device.memory_bandwidth_gb_s.unwrap().value - 3000.0).abs() < 1e-9);
    assert!(catalog.find(Kind::Accelerator, "h100-sxm").unwrap().overrides);
    assert_eq!(catalog.model("ME/mine", Path::new("")).unwrap().name, "mine");

    // Another name inside than outside, another folder, no kind.
    fs::write(dir.path().join("accelerators/other.yaml"), &own).unwrap();
    let catalog = Catalog::shipped().with_folder(dir.path()).unwrap();
    let e = catalog.accelerator("other", Path::new("")).unwrap_err();
    assert_eq!(e.place.as_deref(), Some("name"), "{e}");
    fs::create_dir(dir.path().join("accelerator")).unwrap();
    let e = Catalog::shipped().with_folder(dir.path()).unwrap_err();
    assert_eq!(e.nearest.as_deref(), Some("accelerators"), "{e}");
    fs::remove_dir(dir.path().join("accelerator")).unwrap();
    fs::write(dir.path().join("mine.yaml"), "name: mine\n").unwrap();
    let e = Catalog::shipped().with_folder(dir.path()).unwrap_err();
    assert_eq!(e.place.as_deref(), Some("kind"), "{e}");
    assert!(Catalog::shipped().with_folder(&dir.path().join("none")).is_err());
}
