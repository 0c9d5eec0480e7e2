use super::*;

#[test]
fn reads_data() {
    let Ok(root) = std::env::var("KB_TMP") else { return };
    for f in find_captures(Path::new(&root)).unwrap() {
        let c = Capture::read(&f).unwrap();
        c.engine_config().unwrap();
        let t = c.trace().unwrap();
        let tok = c.token_times().unwrap();
        let mut seeds: Vec<_> = c.requests.iter().map(|r| r.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        println!(
            "{} {} {} {} dupseeds {}",
            c.name,
            c.steps.len(),
            t.requests.len(),
            tok.len(),
            c.requests.len() - seeds.len()
        );
    }
}
