//! What is exported is listed in `docs/run-a-grid/metrics.md`, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use web::header::{CONTENT_TYPE, HeaderValue};

use super::*;
use crate::core::census::Census;
use crate::core::traffic::Moved;

const PAGE: &str = include_str!("../../../docs/run-a-grid/metrics.md");

/// Name, type and labels of each metric, as Prometheus stores it.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

fn exported() -> Metrics {
    let mut all = Metrics::new();
    let texts = [
        open_metrics(&DaemonMetrics::default().registry()),
        open_metrics(&RegistryMetrics::default().registry()),
    ];
    for text in &texts {
        all.extend(read(text));
    }
    all
}

fn read(open_metrics: &str) -> Metrics {
    let mut all = Metrics::new();
    let text = classic(open_metrics);
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            all.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (name, labels) = line.split_once('{').unwrap_or((line, ""));
            let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
            let family = all
                .keys()
                .filter(|family| name.starts_with(family.as_str()))
                .max();
            let Some(family) = family.cloned() else {
                assert!(!name.contains("ckpt") || labels.is_empty(), "{line}");
                continue;
            };
            let names = labels
                .split("\",")
                .filter_map(|label| label.split_once('='));
            let names = names
                .map(|(label, _)| label.to_owned())
                .filter(|label| label != "le");
            all.get_mut(&family).unwrap().1.extend(names);
        }
    }
    all
}

/// The rows of the tables: | `name` | type | labels | meaning |
fn listed() -> Metrics {
    let rows = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `ckpt_"));
    let rows = rows.filter(|row| row.starts_with("store_") || row.starts_with("registry_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[2].split('`').skip(1).step_by(2).map(str::to_owned);
        let name = format!("ckpt_{}", cells[0].trim_end_matches('`'));
        (name, (cells[1].to_owned(), labels.collect()))
    })
    .collect()
}

#[test]
fn the_page_lists_exactly_what_is_exported() {
    let exported = exported();
    let listed = listed();
    assert!(exported.len() > 30, "{}", exported.len());
    for (name, form) in &exported {
        assert_eq!(
            listed.get(name),
            Some(form),
            "docs/run-a-grid/metrics.md on {name}"
        );
    }
    for name in listed.keys() {
        assert!(
            exported.contains_key(name),
            "docs/run-a-grid/metrics.md lists {name}, which is not exported"
        );
    }
}

#[test]
fn names_follow_the_customs_of_prometheus() {
    for (name, (kind, _)) in exported() {
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
    }
}

#[test]
fn both_forms_say_the_same() {
    let metrics = DaemonMetrics::default();
    metrics.requests.count("find", Ended::Refused);
    metrics.repaired(true);
    metrics.syncs.observe(0.003);
    metrics.moved(
        3,
        Moved {
            received: 70,
            sent: 5,
        },
    );
    metrics.moved(
        2,
        Moved {
            received: 80,
            sent: 5,
        },
    );
    let open = open_metrics(&metrics.registry());
    let classic = classic(&open);
    let samples = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(samples(&open), samples(&classic));
    for line in [
        "ckpt_store_requests_total{request=\"find\",result=\"refused\"} 1",
        "ckpt_store_repairs_total{result=\"done\"} 1",
        "ckpt_store_received_bytes_total 80",
        "ckpt_store_connections 2",
        "ckpt_store_fsync_seconds_bucket{le=\"0.005\"} 1",
    ] {
        assert!(
            samples(&open).iter().any(|sample| sample == line),
            "{line}\n{open}"
        );
    }
    assert!(open.ends_with("# EOF\n") && !classic.contains("# EOF"));
    assert!(open.contains("# TYPE ckpt_store_repairs counter"), "{open}");
    assert!(
        classic.contains("# TYPE ckpt_store_repairs_total counter"),
        "{classic}"
    );
    assert!(
        classic.contains("# HELP ckpt_store_repairs_total "),
        "{classic}"
    );
}

#[test]
fn checkpoints_that_are_gone_are_counted_no_more() {
    let metrics = DaemonMetrics::default();
    let many = Census {
        can_lose: vec![1, 2, 3, 4, 5, 6],
        too_few: 7,
        ..Census::default()
    };
    metrics.count(100, &many);
    let value = |lose: &str| {
        let text = open_metrics(&metrics.registry());
        let start = format!("ckpt_store_counted_checkpoints{{can_lose=\"{lose}\"}} ");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&start).map(str::to_owned));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(["too_few", "0", "3", "4+"].map(value), [7, 1, 4, 11]);
    metrics.count(200, &Census::default());
    assert_eq!(LOSE.map(value), [0; 6]);
}

#[test]
fn the_form_is_that_which_the_client_asks_for() {
    let registry = DaemonMetrics::default().registry();
    let kind = |accept: &'static str| {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let response = exported_as(&registry, &headers);
        response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned()
    };
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5";
    assert_eq!(kind(prometheus), OPEN_METRICS);
    assert_eq!(kind("*/*"), CLASSIC);
}
