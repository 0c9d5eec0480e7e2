use super::*;
use crate::metric::cluster::fixture::{event, full_options, outage};
use crate::metric::cluster::{ClusterSeries, ClusterSummary};
use crate::metric::cost::OtherCost;

/// What the hand-worked outage prints. After a change that is meant: `BLESS=1 cargo test golden`, and read it.
#[test]
fn the_golden_tables() {
    let (run, mut cluster) = outage();
    // Two tenants and an autoscaler, so that every table is there.
    cluster.jobs.iter_mut().skip(40).for_each(|j| j.tenant = 1);
    let mut options = full_options();
    options.other_costs.push(OtherCost {
        name: "control plane".into(),
        usd_h: 1.0,
        source: None,
    });
    options.link_bytes_per_s.insert("spine".into(), 1_000);
    cluster.links.push(("spine".into(), 20_000));
    cluster.timeline.push(event(30, "scale", None, "main: +1 groups"));
    let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
    let printed = tables(&summary, &[], Some(120));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/cluster/golden.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &printed).unwrap();
    }
    assert_eq!(printed, std::fs::read_to_string(path).unwrap());
}

#[test]
fn names_of_users_are_escaped_in_the_page_and_kept_on_their_line() {
    let evil = "<b>\"x\"\n,y";
    let (run, mut cluster) = outage();
    cluster.pools[0] = evil.into();
    for event in &mut cluster.timeline {
        event.what = event.what.replace("main", evil);
    }
    cluster.links = vec![(evil.into(), 1)];
    let mut options = full_options();
    let facts = options.pools.remove("main").unwrap();
    options.pools.insert(evil.into(), facts);
    options.tenants.get_mut(&0).unwrap().name = Some(evil.into());
    let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
    let series = ClusterSeries::of(&run, &cluster, &options).unwrap();
    let page = crate::report::Page {
        sections: vec![section(&summary, &[], &plots(&summary, &series))],
        ..crate::report::Page::default()
    };
    let html = page.html();
    assert!(!html.contains("<b>") && html.contains("&lt;b&gt;"));
    assert_eq!(html.matches("<svg").count(), 3, "no KV was moved");
    let lines = failure_timeline(&cluster).unwrap();
    assert_eq!(lines.lines().count(), cluster.timeline.len());
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            value["at_s"].is_number() && value["event"].is_string() && value["what"].is_string(),
            "{line}"
        );
    }
    assert!(groups_csv(&summary).contains("\"<b>\"\"x\"\"\n,y/0\""));
}

#[test]
fn the_run_folder_holds_what_can_be_read_again() {
    let (run, cluster) = outage();
    let summary = ClusterSummary::of(&run, &cluster, &full_options()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &cluster, &summary, &[]).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(
        serde_json::from_str::<ClusterSummary>(&read(CLUSTER_FILE)).unwrap(),
        summary
    );
    let first = read(FAILURE_TIMELINE_FILE);
    let second_line =
        r#"{"at_s":10.0,"event":"crash","group":"main/1","group_number":1,"what":"main/1: group_crash"}"#;
    assert_eq!(first.lines().nth(1), Some(second_line));
    let groups = read(GROUPS_FILE);
    assert!(
        groups.starts_with("number,group,pool,revision,ranks,answered (requests),"),
        "{groups}"
    );
    assert_eq!(
        (groups.lines().count(), read(TENANTS_FILE).lines().count()),
        (3, 2)
    );
}

#[test]
fn many_faults_do_not_hide_the_curves() {
    let (run, mut cluster) = outage();
    let fault = cluster.timeline[0].clone();
    cluster.timeline = vec![fault; 20];
    let summary = ClusterSummary::of(&run, &cluster, &full_options()).unwrap();
    let series = ClusterSeries::of(&run, &cluster, &full_options()).unwrap();
    for (_, plot) in plots(&summary, &series) {
        let last = plot.guides.last().unwrap().label();
        assert_eq!(
            (plot.guides.len(), last),
            (9, "group_crash main/1 (and 12 more faults)")
        );
    }
}
