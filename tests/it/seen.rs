//! What monitoring sees of the real programs: metrics, the page, the dashboard, the file of a save.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tests::Grid;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;

use crate::save_file;

const LIMIT: Duration = Duration::from_secs(120);

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A child that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // May have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Status, head and body of an answer.
fn get(addr: SocketAddr, path: &str, more: &str) -> Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {addr}\r\n{more}\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
        true => anyhow::bail!("an answer in chunks: {head}"),
        false => body.to_owned(),
    };
    Ok((status, head.to_owned(), body))
}

/// The names of the metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|rest| rest.split(' ').next().map(str::to_owned))
        .collect()
}

/// Names that begin with `ckpt_store_`, `ckpt_registry_` or `ckpt_save_`.
fn mentioned(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = ["ckpt_store_", "ckpt_registry_", "ckpt_save_"];
    words
        .filter(|word| ours.iter().any(|start| word.starts_with(start)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_the_page_lists() {
    let page = include_str!("../../docs/run-a-grid/metrics.md");
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert!(listed.len() > 40, "{}", listed.len());
    for (file, text) in [
        (
            "ckpt-rules.yml",
            include_str!("../../packaging/monitoring/ckpt-rules.yml"),
        ),
        (
            "ckpt-rules-test.yml",
            include_str!("../../packaging/monitoring/ckpt-rules-test.yml"),
        ),
        (
            "ckpt-grafana.json",
            include_str!("../../packaging/monitoring/ckpt-grafana.json"),
        ),
    ] {
        let names = mentioned(text);
        assert!(names.len() > 10, "{file}: {names:?}");
        for name in names {
            let family = name.strip_suffix("_bucket").unwrap_or(&name);
            assert!(
                listed.contains(family),
                "{file} names {name}, which docs/run-a-grid/metrics.md does not list"
            );
        }
    }
}

#[test]
fn the_dashboard_for_grafana_asks_for_something_in_each_panel() -> Result<()> {
    let text = include_str!("../../packaging/monitoring/ckpt-grafana.json");
    let dashboard: Value = serde_json::from_str(text)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    for panel in panels {
        let asked = panel["targets"].as_array().context("targets")?;
        let expressions = asked.iter().filter_map(|one| one["expr"].as_str());
        ensure!(expressions.count() > 0, "{panel}");
    }
    Ok(())
}

/// A grid of three hosts with a registry whose page is at `seen`; the metrics of one host are at `host`, for
/// those who show the token. The user zoe has saved the job `thesis`.
fn watched(seen: SocketAddr, host: SocketAddr) -> Result<Machines> {
    let mut machines = Machines::new()?;
    let registry = free_address()?;
    let init = [
        "grid",
        "init",
        "--name",
        "lab",
        "--registry",
        &registry.to_string(),
    ];
    machines.ckpt("admin", &init)?.expect(0)?;
    machines.start("admin", &["registry", "--metrics", &seen.to_string()])?;
    let tokens = machines.invite(3, 1)?;
    for (machine, token) in ["h1", "h2", "h3"].into_iter().zip(&tokens) {
        machines
            .store(machine, &["join", token, "--name", machine])?
            .expect(0)?;
        let mut more = vec!["--listen", "127.0.0.1:0", "--repair-period", "1s"];
        let addr = host.to_string();
        let file = machines.path(machine, "token").display().to_string();
        if machine == "h1" {
            fs::write(&file, TOKEN)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
            more.extend(["--metrics", &addr, "--metrics-token", &file]);
        }
        machines.serve(machine, &more)?;
    }
    machines
        .ckpt("zoe", &["join", &tokens[3], "--name", "zoe"])?
        .expect(0)?;
    fs::write(machines.path("zoe", "img"), [7; 50_000])?;
    wait_until("three hosts are up", LIMIT, || {
        Ok(machines.hosts("zoe")?.iter().filter(|(_, up)| *up).count() == 3)
    })?;
    let save = [
        "save", "--job", "thesis", "--data", "2", "--parity", "1", "img",
    ];
    machines.ckpt("zoe", &save)?.expect(0)?;
    Ok(machines)
}

fn registry_exports(seen: SocketAddr) -> Result<String> {
    let proved = "ckpt_registry_checkpoints{can_lose=\"1\",source=\"proved\"} 1";
    wait_until("the registry counts the checkpoint", LIMIT, || {
        let (status, _, text) = get(seen, "/metrics", "")?;
        ensure!(status == 200, "{text}");
        Ok(text.lines().any(|line| line == proved))
    })?;
    let (_, head, of_registry) = get(seen, "/metrics", "accept: application/openmetrics-text\r\n")?;
    ensure!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    ensure!(of_registry.ends_with("# EOF\n"), "{of_registry}");
    ensure!(
        of_registry.contains("ckpt_registry_hosts{state=\"alive\"} 3"),
        "{of_registry}"
    );
    let counting = "ckpt_registry_counting_hosts{state=\"counted\"} 3";
    ensure!(of_registry.contains(counting), "{of_registry}");
    Ok(get(seen, "/metrics", "")?.2)
}

fn host_exports(host: SocketAddr) -> Result<String> {
    let (status, _, nothing) = get(host, "/metrics", "")?;
    ensure!(
        status == 401 && !nothing.contains("ckpt_"),
        "{status} {nothing}"
    );
    let shown = format!("authorization: Bearer {TOKEN}\r\n");
    wait_until("the host counts its shard", LIMIT, || {
        let (status, _, text) = get(host, "/metrics", &shown)?;
        ensure!(status == 200, "{text}");
        Ok(text.lines().any(|one| one == "ckpt_store_shards 1"))
    })?;
    let of_host = get(host, "/metrics", &shown)?.2;
    ensure!(
        of_host.contains("\nckpt_store_refusing_seconds 0\n"),
        "{of_host}"
    );
    ensure!(
        of_host.contains("request=\"put\",result=\"answered\"} 1"),
        "{of_host}"
    );
    let synced = of_host
        .lines()
        .find_map(|line| line.strip_prefix("ckpt_store_fsync_seconds_count "));
    ensure!(synced.is_some_and(|count| count != "0"), "{of_host}");
    Ok(of_host)
}

#[test]
fn a_registry_shows_what_its_hosts_prove_and_no_names() -> Result<()> {
    let seen = free_address()?;
    let host = free_address()?;
    let mut machines = watched(seen, host)?;
    let of_registry = registry_exports(seen)?;
    let of_host = host_exports(host)?;
    let page = include_str!("../../docs/run-a-grid/metrics.md");
    for text in [&of_registry, &of_host] {
        for name in ["thesis", "zoe", "h1", "127.0.0.1"] {
            ensure!(!text.contains(name), "{name}: {text}");
        }
    }
    for name in named(&of_registry).into_iter().chain(named(&of_host)) {
        ensure!(
            page.contains(&format!("| `{name}` |")),
            "{name} is not in docs/run-a-grid/metrics.md"
        );
    }
    registry_page(seen)?;
    machines.stop("h3")?;
    wait_until("the page says that a host is down", LIMIT, || {
        Ok(get(seen, "/", "")?.2.contains("2 of 3 hosts up"))
    })?;
    Ok(())
}

fn registry_page(seen: SocketAddr) -> Result<()> {
    // The page is made again every few seconds, so it may be older than the last host.
    wait_until("the page says that all hosts are up", LIMIT, || {
        Ok(get(seen, "/", "")?.2.contains("3 of 3 hosts up"))
    })?;
    let (status, head, page) = get(seen, "/", "")?;
    ensure!(status == 200 && head.contains("text/html"), "{head}");
    ensure!(
        page.contains("grid lab") && page.contains("3 of 3 hosts up"),
        "{page}"
    );
    ensure!(
        !page.contains("<script") && !page.contains("thesis"),
        "{page}"
    );
    let json: Value = serde_json::from_str(&get(seen, "/health.json", "")?.2)?;
    ensure!(
        json["grid"]["can_lose"][1] == 1 && json["grid"]["owners"] == serde_json::json!([]),
        "{json}"
    );
    ensure!(
        json["hosts"]["stay"].as_array().map(Vec::len) == Some(11),
        "{json}"
    );
    ensure!(get(seen, "/health.txt", "")?.2.contains("3 of 3 hosts up"));
    let (status, ..) = get(seen, "/metrics", "host: elsewhere.example\r\n")?;
    ensure!(status == 421, "sent to another name: {status}");
    Ok(())
}

#[test]
fn metrics_are_not_shown_to_other_machines_without_a_token() -> Result<()> {
    let machines = Machines::new()?;
    let grid = Grid::up(5)?;
    let serve = [
        "serve",
        "--grid",
        &grid.file().display().to_string(),
        "--metrics",
        "0.0.0.0:7480",
    ];
    let data = grid.data_dir("h01").display().to_string();
    let refused = machines.store("other", &[&serve[..], &["--data", &data]].concat())?;
    let said = &refused.stderr;
    ensure!(
        refused.code == Some(1) && said.contains("--metrics-token FILE"),
        "{said}"
    );
    let refused = grid
        .run(["dashboard", "--listen", "0.0.0.0:7481"])?
        .expect(2)?;
    let said = &refused.stderr;
    ensure!(said.contains("--token-file FILE"), "{said}");
    Ok(())
}

#[test]
fn the_dashboard_shows_what_health_reports() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"state")?;
    let addr = free_address()?;
    let mut command =
        grid.command(["dashboard", "--every", "1s", "--listen", &addr.to_string()])?;
    let running = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let _running = Running(running);
    let shows = |path: &str, part: &str| -> Result<bool> {
        let Ok((status, _, text)) = get(addr, path, "") else {
            return Ok(false);
        };
        Ok(status == 200 && text.contains(part))
    };
    wait_until("the page is there", LIMIT, || shows("/", "All is well"))?;
    ensure!(shows("/", ">42<")?);
    ensure!(shows("/live", "http-equiv=\"refresh\"")?);
    ensure!(shows("/health.txt", "all is well")?);
    ensure!(shows("/health.json", "\"job\":\"42\"")?);
    ensure!(shows("/style.css", "prefers-color-scheme")?);
    let holders = grid.holders("42")?;
    grid.kill(&holders[0])?;
    wait_until("the page says what is wrong", LIMIT, || {
        shows("/", "can lose 1")
    })?;
    ensure!(shows("/", "Needs attention: ")?);
    Ok(())
}

#[test]
fn a_save_says_when_the_last_one_succeeded() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), "state")?;
    let save = [
        "save",
        "--job",
        "secret",
        "--metrics-file",
        "train.prom",
        "img",
    ];
    grid.run(save)?.expect(0)?;
    let number = |name: &str| -> Result<f64> {
        let text = fs::read_to_string(grid.path("train.prom"))?;
        let start = format!("{name}{{file=\"train\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&start));
        Ok(found.with_context(|| format!("{name}: {text}"))?.parse()?)
    };
    let last = number("ckpt_save_last_success_timestamp_seconds")?;
    ensure!(last > 1.6e9 && number("ckpt_save_can_lose")? == 2.0);
    for (host, _) in grid.running()? {
        grid.kill(&host)?;
    }
    grid.run(save)?.expect(5)?;
    ensure!(number("ckpt_save_last_success_timestamp_seconds")? == last);
    ensure!(number("ckpt_save_failures_total")? == 1.0);
    ensure!(number("ckpt_save_last_attempt_timestamp_seconds")? >= last);
    let text = fs::read_to_string(grid.path("train.prom"))?;
    ensure!(!text.contains("secret"), "{text}");
    let page = include_str!("../../docs/run-a-grid/metrics.md");
    for name in named(&text) {
        ensure!(
            page.contains(&format!("| `{name}` |")),
            "{name} is not in docs/run-a-grid/metrics.md"
        );
    }
    let mode = fs::metadata(grid.path("train.prom"))?.permissions().mode();
    ensure!(
        mode & 0o444 == 0o444,
        "node_exporter is another user: {mode:o}"
    );
    let wrong = [
        "save",
        "--job",
        "secret",
        "--metrics-file",
        "train.txt",
        "img",
    ];
    grid.run(wrong)?.expect(2)?;
    // A directory that is gone costs no checkpoint.
    grid.restart()?;
    let nowhere = [
        "save",
        "--job",
        "secret",
        "--metrics-file",
        "gone/train.prom",
        "img",
    ];
    let saved = grid.run(nowhere)?.expect(0)?;
    let said = &saved.stderr;
    ensure!(said.contains("gone/train.prom"), "{said}");
    Ok(())
}

#[test]
fn health_that_watches_reports_what_changes_until_it_is_interrupted() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"state")?;
    let mut command = grid.command(["--json", "health", "--watch", "--every", "1s"])?;
    let mut running = Running(command.stdout(Stdio::piped()).spawn()?);
    let out = running.0.stdout.take().context("no output")?;
    let mut reports = BufReader::new(out).lines();
    let mut next = || -> Result<Value> {
        let line = reports.next().context("it ended")??;
        Ok(serde_json::from_str(&line)?)
    };
    ensure!(next()?["attention"].as_array().is_some_and(Vec::is_empty));
    grid.kill(&grid.holders("42")?[0])?;
    // A host that was killed is seen as down after some looks; each look has a bound.
    while next()?["attention"].as_array().is_some_and(Vec::is_empty) {}
    let pid = Pid::from_child(&running.0);
    rustix::process::kill_process(pid, Signal::INT)?;
    ensure!(running.0.wait()?.success());
    // The reader of a pipe that goes away ends it, too.
    let mut command = grid.command(["health", "--watch", "--every", "1s"])?;
    let mut running = Running(command.stdout(Stdio::piped()).spawn()?);
    drop(running.0.stdout.take());
    ensure!(running.0.wait()?.success());
    Ok(())
}
