//! What `ckpt health` and `ckpt hosts` report, and their exit statuses, on which monitoring relies.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::Grid;
use tests::program::wait_until;

use crate::save_file;

const LIMIT: Duration = Duration::from_secs(60);

/// The kind of each entry that a health report lists under `attention`.
fn kinds(health: &Value) -> Vec<&str> {
    let all = health["attention"].as_array();
    let kinds = all.map(|all| all.iter().filter_map(|one| one["kind"].as_str()).collect());
    kinds.unwrap_or_default()
}

#[test]
fn all_is_well_until_hosts_are_missing() -> Result<()> {
    let grid = Grid::up(6)?;
    save_file(&grid, "42", b"state")?;
    let said = grid.run(["health"])?.expect(0)?;
    let text = String::from_utf8(said.stdout)?;
    for part in [
        "all is well",
        "6 of 6 hosts up, 6 take shards",
        "can lose 2, as hosts report",
    ] {
        ensure!(text.contains(part), "{part}: {text}");
    }
    ensure!(text.contains("certificate of owner expires in"), "{text}");
    let well = grid.run(["--json", "health"])?.expect(0)?.json()?;
    let job = &well["jobs"][0];
    ensure!(job["job"] == "42" && job["version"] == 1, "{job}");
    ensure!(job["created"]["basis"] == "proved", "{job}");
    ensure!(
        job["can_lose"]["value"] == 2 && job["can_lose"]["basis"] == "announced",
        "{job}"
    );
    ensure!(well["hosts"]["up"]["value"] == 6 && well["hosts"]["up"]["basis"] == "seen");
    ensure!(
        well["hosts"]["clock_ahead_s"]["value"] == 0,
        "{}",
        well["hosts"]
    );
    ensure!(kinds(&well).is_empty(), "{well}");

    let proved = grid
        .run(["--json", "health", "--prove"])?
        .expect(0)?
        .json()?;
    let job = &proved["jobs"][0];
    ensure!(
        job["can_lose"]["value"] == 2 && job["can_lose"]["basis"] == "proved",
        "{job}"
    );

    // One holder is gone: one shard is missing, and there are still enough hosts for a save.
    let holders = grid.holders("42")?;
    grid.kill(&holders[0])?;
    let unwell = grid.run(["--json", "health"])?.expect(3)?.json()?;
    ensure!(
        kinds(&unwell) == ["hosts_away", "below_redundancy"],
        "{unwell}"
    );
    ensure!(unwell["jobs"][0]["can_lose"]["value"] == 1, "{unwell}");
    // Programs that search the text find whole causes in it, and the cause of all stands first.
    let text = grid.run(["health"])?.expect(3)?.to_string();
    ensure!(
        !text.contains('…') && text.contains("UDP blocked"),
        "{text}"
    );
    let first = "1 of 6 are away: ";
    let lacks = "1 job can lose less than at the save";
    ensure!(text.contains(first) && text.contains(lacks), "{text}");
    let hosts = grid.run(["hosts"])?.to_string();
    ensure!(
        !hosts.contains('…') && hosts.contains("UDP blocked"),
        "{hosts}"
    );
    // Three holders are gone: two shards are too few to restore the checkpoint.
    grid.kill(&holders[1])?;
    grid.kill(&holders[2])?;
    let away = grid.run(["--json", "health"])?.expect(5)?.json()?;
    ensure!(kinds(&away).contains(&"not_restorable"), "{away}");
    ensure!(kinds(&away).contains(&"too_few_hosts"), "{away}");
    Ok(())
}

#[test]
fn a_holder_that_lost_its_shard_is_found_by_asking_for_proof() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", &[7; 100_000])?;
    // The daemon still claims to hold the shard that is gone from its disk.
    for file in grid.shard_files("h03")? {
        fs::remove_file(file)?;
    }
    let said = grid.run(["--json", "health"])?.expect(0)?.json()?;
    ensure!(said["jobs"][0]["can_lose"]["value"] == 2, "{said}");
    let proved = grid
        .run(["--json", "health", "--prove"])?
        .expect(3)?
        .json()?;
    let job = &proved["jobs"][0];
    ensure!(
        job["shards"]["value"] == 4 && job["can_lose"]["value"] == 1,
        "{job}"
    );
    ensure!(kinds(&proved) == ["below_redundancy"], "{proved}");
    Ok(())
}

#[test]
fn leases_keys_and_jobs_that_were_not_saved_need_attention() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), "x")?;
    grid.run(["save", "--job", "42", "--ttl", "36h", "img"])?
        .expect(0)?;
    let health = |options: &[&str], code| -> Result<Value> {
        let mut args = vec!["--json", "health"];
        args.extend(options);
        grid.run(args)?.expect(code)?.json()
    };
    let lease = health(&[], 3)?;
    ensure!(kinds(&lease) == ["lease_ends"], "{lease}");
    ensure!(
        lease["jobs"][0]["kept_until"]["basis"] == "proved",
        "{lease}"
    );
    health(&["--leases", "1d"], 0)?;
    // Certificates of a local grid are good for years.
    let keys = health(&["--leases", "1d", "--keys", "36500d"], 3)?;
    let kinds_found = kinds(&keys);
    ensure!(!kinds_found.is_empty(), "{keys}");
    ensure!(kinds_found.iter().all(|kind| *kind == "ends"), "{keys}");
    let old = || health(&["--leases", "1d", "--max-age", "1ms"], 3);
    wait_until("the save is a second old", LIMIT, || {
        Ok(grid
            .run(["--json", "health", "--leases", "1d", "--max-age", "1ms"])?
            .code
            == Some(3))
    })?;
    ensure!(kinds(&old()?) == ["not_saved"]);
    // A job key ends in three days.
    grid.run(["key", "for-job", "--job", "42", "-o", "job.key"])?
        .expect(0)?;
    let with_key = [
        "--json",
        "--key-file",
        "job.key",
        "health",
        "--leases",
        "1d",
    ];
    let job_key = grid.run(with_key)?.expect(3)?.json()?;
    ensure!(kinds(&job_key) == ["ends"], "{job_key}");
    ensure!(job_key["keys"][0]["what"] == "job key", "{job_key}");
    Ok(())
}

#[test]
fn hosts_ends_with_a_summary_and_fails_if_no_host_answers() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"x")?;
    let last_line = |code| -> Result<String> {
        let said = grid.run(["hosts"])?.expect(code)?;
        let text = String::from_utf8(said.stdout)?;
        Ok(text.lines().last().context("no line")?.to_owned())
    };
    let all = last_line(0)?;
    ensure!(all.starts_with("5 of 5 hosts up, 5 take shards, "), "{all}");
    for (host, _) in grid.running()? {
        grid.kill(&host)?;
    }
    let none = grid.run(["hosts"])?.expect(5)?;
    let text = String::from_utf8(none.stdout)?;
    ensure!(
        text.contains("0 of 5 hosts up, 0 take shards, 0 B free"),
        "{text}"
    );
    let widest = text.lines().map(|line| line.chars().count()).max();
    ensure!(widest < Some(170), "{text}");
    let verbose = grid.run(["-v", "hosts"])?.expect(5)?;
    let longer = String::from_utf8(verbose.stdout)?;
    ensure!(longer.contains("UDP blocked"), "{longer}");
    let json = grid.run(["--json", "hosts"])?.expect(5)?.json()?;
    ensure!(json["summary"]["up"] == 0, "{json}");
    let health = grid.run(["--json", "health"])?.expect(5)?.json()?;
    ensure!(health["hosts"]["up"]["value"] == 0, "{health}");
    Ok(())
}

#[test]
fn many_hosts_that_do_not_answer_are_one_line() -> Result<()> {
    let grid = Grid::up(7)?;
    let save = ["save", "--job", "42", "--data", "1", "--parity", "1", "img"];
    fs::write(grid.path("img"), "x")?;
    grid.run(save)?.expect(0)?;
    let holders = grid.holders("42")?;
    let others = grid.running()?.into_iter().map(|(name, _)| name);
    let others: Vec<String> = others.filter(|name| !holders.contains(name)).collect();
    for host in &others {
        grid.kill(host)?;
    }
    let listed = grid.run(["list"])?.expect(0)?;
    let text = String::from_utf8(listed.stdout)?;
    ensure!(
        text.contains("5 hosts do not answer; -v shows why"),
        "{text}"
    );
    ensure!(!text.contains("no answer from"), "{text}");
    let verbose = grid.run(["-v", "list"])?.expect(0)?;
    let text = String::from_utf8(verbose.stdout)?;
    ensure!(text.matches("no answer from").count() == 5, "{text}");
    Ok(())
}

/// Makes a key with the role admin for a local grid, and returns the options that use it.
fn admin(grid: &Grid) -> Result<Vec<String>> {
    let key = grid.path("admin.key");
    let certificate = grid.path("admin.crt");
    let key = key.display().to_string();
    let certificate = certificate.display().to_string();
    grid.run(["--key-file", &*key, "init", "--name", "root"])?
        .expect(0)?;
    let file = grid.file();
    let dir = file.parent().context("no directory")?.display().to_string();
    let public = format!("{key}.pub");
    let sign = [
        "grid", "sign", "--dir", &*dir, "--role", "admin", "--pubkey", &*public,
    ];
    grid.run(sign.iter().chain(&["-o", &*certificate]))?
        .expect(0)?;
    let options = ["--key-file", &*key, "--cert-file", &*certificate];
    Ok(options.map(str::to_owned).to_vec())
}

#[test]
fn an_admin_sees_the_whole_grid_in_counts() -> Result<()> {
    let env = [("CKPT_REPAIR_PERIOD", "300ms"), ("CKPT_REPAIR_AFTER", "1d")];
    let grid = Grid::up_in(5, &env)?;
    for job in ["42", "43"] {
        save_file(&grid, job, &[1; 50_000])?;
    }
    let options = admin(&grid)?;
    let health = || -> Result<(Option<i32>, Value)> {
        let mut args = options.clone();
        args.extend(["--json", "health", "--admin"].map(str::to_owned));
        let said = grid.run(args)?;
        Ok((said.code, said.json()?))
    };
    let wait_for = |what: &str, is: &dyn Fn(&Value) -> bool| -> Result<Value> {
        let mut last = Value::Null;
        let waited = wait_until(what, LIMIT, || {
            last = health()?.1;
            Ok(is(&last["grid"]))
        });
        waited.with_context(|| last.to_string())?;
        Ok(last)
    };
    // Few hosts count a checkpoint, so others may still check their shards when all are counted.
    let whole =
        |grid: &Value| grid["counted_by"] == 5 && grid["can_lose"] == serde_json::json!([0, 0, 2]);
    let well = wait_for("every host has counted and all shards are proved", &whole)?;
    let counts = &well["grid"];
    ensure!(counts["below"] == 0 && counts["too_few"] == 0, "{counts}");
    let owner = &counts["owners"][0];
    ensure!(owner["name"] == "owner" && owner["hosts"] == 5, "{counts}");
    ensure!(
        owner["used_bytes"].as_u64() > Some(5 * 2 * (64 << 10)),
        "{counts}"
    );
    ensure!(kinds(&well).is_empty() && health()?.0 == Some(0), "{well}");
    // The admin sees only counts: neither the job nor the id of the checkpoint is in the report.
    let shown = grid.run(["--json", "list"])?.expect(0)?.json()?;
    let id = shown["checkpoints"][0]["checkpoint"]
        .as_str()
        .context("no id")?;
    ensure!(
        !well.to_string().contains(id) && !well.to_string().contains("\"42\""),
        "{well}"
    );
    let mut args = options.clone();
    args.extend(["health", "--admin"].map(str::to_owned));
    let text = String::from_utf8(grid.run(args)?.expect(0)?.stdout)?;
    for part in ["all is well", "2 can lose 2", "5 of 5 hosts up", "OWNER"] {
        ensure!(text.contains(part), "{part}: {text}");
    }

    grid.kill("h02")?;
    let reduced = |grid: &Value| grid["below"] == 2;
    let unwell = wait_for("the missing shards are noticed", &reduced)?;
    let said = kinds(&unwell);
    ensure!(
        said.contains(&"below_redundancy") && said.contains(&"too_few_hosts"),
        "{unwell}"
    );
    ensure!(health()?.0 == Some(3));
    Ok(())
}

#[test]
fn a_donor_gets_no_health_of_the_grid_and_an_admin_can_not_list() -> Result<()> {
    let grid = Grid::up(1)?;
    // The submitter of a local grid is also its admin, so this test uses the key of a donor.
    let files = ["identity.key", "identity.crt"].map(|name| grid.data_dir("h01").join(name));
    let [key, certificate] = files.map(|path| path.display().to_string());
    let donor = ["--key-file", &*key, "--cert-file", &*certificate];
    let refused = grid
        .run(donor.iter().chain(&["health", "--admin"]))?
        .expect(6)?;
    ensure!(
        refused.stderr.contains("not certified as an admin"),
        "{refused}"
    );
    // The role admin does not include that of a submitter.
    let mut args = admin(&grid)?;
    args.push("list".into());
    grid.run(args)?.expect(6)?;
    Ok(())
}
