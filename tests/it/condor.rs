//! The plug-ins for HTCondor, called as a starter and a schedd of version 23.9.6 called them in a real
//! pool; `tests/ecosystem/htcondor.sh` recorded these calls.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use condor::classad::{ClassAd, Value, parse_ads};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::damage::flip;
use tests::program::{command, run, wait, wait_until};
use tests::{Grid, Outcome};

/// The job's name, in URLs of the plug-in and in the grid.
const JOB: &str = "alice/localhost_1.0_1795362462";

/// A job's directory on an execute machine.
struct Sandbox<'a> {
    grid: &'a Grid,
    dir: PathBuf,
}

impl<'a> Sandbox<'a> {
    /// A sandbox with the files that the job brings along: the grid file and a job key.
    fn new(grid: &'a Grid, name: &str, environment: &str) -> Result<Self> {
        let dir = grid.path(name);
        fs::create_dir(&dir)?;
        let key = grid.path("job.key");
        if !key.exists() {
            let rights = ["--rights", "save,restore,remove"];
            let make = ["key", "for-job", "--job", "alice/", "-o", "job.key"];
            grid.run(make.iter().chain(&rights))?.expect(0)?;
        }
        fs::copy(key, dir.join("job.key"))?;
        fs::copy(grid.file(), dir.join("grid.toml"))?;
        let sandbox = Self { grid, dir };
        sandbox.write_ad(environment)?;
        Ok(sandbox)
    }

    fn write_ad(&self, environment: &str) -> Result<()> {
        let ad = format!(
            "CheckpointDestination = \"ckpt://grid/alice\"\nClusterId = 1\n\
             CondorVersion = \"$CondorVersion: 23.9.6 2026-07-12 $\"\nDiskUsage = 7500\n\
             Environment = \"{environment}\"\nGlobalJobId = \"localhost#1.0#1795362462\"\n\
             Iwd = \"{}\"\nMemoryUsage = ((ResidentSetSize + 1023) / 1024)\nRank = 0.0\n\
             JobCurrentReconnectAttempt = undefined\nTransferCheckpoint = \"state,ballast\"\n",
            self.dir.display()
        );
        Ok(fs::write(self.dir.join(".job.ad"), ad)?)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(file);
        fs::create_dir_all(path.parent().context("no directory")?)?;
        Ok(fs::write(path, bytes)?)
    }

    fn read(&self, file: &str) -> Result<Vec<u8>> {
        fs::read(self.dir.join(file)).with_context(|| file.to_owned())
    }

    /// A command of a plug-in, with the environment that HTCondor gives it.
    fn program(&self, name: &str) -> Result<Command> {
        let mut plugin = command::<&str>([])?;
        plugin
            .arg0(format!("/usr/libexec/condor/{name}"))
            .env("HOME", "/root")
            .env("CKPT_STATE_DIR", self.grid.path("state"))
            .env("_CONDOR_JOB_AD", self.dir.join(".job.ad"))
            .current_dir(&self.dir);
        Ok(plugin)
    }

    /// A call of the transfer plug-in for these files of checkpoint `number`.
    fn call(&self, number: &str, files: &[&str], upload: bool) -> Result<Command> {
        let item = |file: &&str| {
            let between = if upload { "" } else { "./" };
            let dir = self.dir.display();
            format!(
                "[ Url = \"ckpt://grid/{JOB}/{number}/{file}\"; LocalFileName = \"{dir}/{between}{file}\" ]"
            )
        };
        let items: String = files.iter().map(item).collect();
        self.write(".ckpt_plugin.in", items.as_bytes())?;
        self.call_as_it_is(upload)
    }

    /// A call of the transfer plug-in with the present infile.
    fn call_as_it_is(&self, upload: bool) -> Result<Command> {
        // The starter writes an outfile of this length before the call.
        self.write(".ckpt_plugin.out", &[0; 19_264])?;
        let mut plugin = self.program("ckpt_plugin")?;
        plugin
            .arg("-infile")
            .arg(self.dir.join(".ckpt_plugin.in"))
            .arg("-outfile")
            .arg(self.dir.join(".ckpt_plugin.out"));
        if upload {
            plugin.arg("-upload");
        }
        Ok(plugin)
    }

    fn transfer(
        &self,
        number: &str,
        files: &[&str],
        upload: bool,
    ) -> Result<(Outcome, Vec<ClassAd>)> {
        let outcome = run(&mut self.call(number, files, upload)?)?;
        Ok((outcome, self.answers(files)?))
    }

    /// The ads of the outfile, one for each file.
    fn answers(&self, files: &[&str]) -> Result<Vec<ClassAd>> {
        let answers = parse_ads(&self.read(".ckpt_plugin.out")?)?;
        ensure!(answers.len() == files.len(), "{answers:?}");
        for (answer, file) in answers.iter().zip(files) {
            let named = answer.text("TransferFileName").unwrap_or_default();
            ensure!(named.ends_with(file.as_bytes()), "{answer:?}");
        }
        Ok(answers)
    }

    fn cleanup(&self, number: &str, file: &str, more: &[&str]) -> Result<Outcome> {
        // The job's ad at the access point, where its files are in the user's directories.
        let ad = format!(
            "Environment = \"CKPT_GRID=grid.toml CKPT_KEY_FILE=job.key\"\nIwd = \"{}\"\n\
             TransferInput = \"job.key,grid/grid.toml\"\n",
            self.grid.dir().display()
        );
        let job_ad = self.grid.path("submitted.ad");
        fs::write(&job_ad, ad)?;
        let mut cleanup = self.program("ckpt_cleanup")?;
        cleanup
            .env_remove("_CONDOR_JOB_AD")
            .current_dir("/")
            .args([
                "-from",
                &format!("ckpt://grid/{JOB}/{number}"),
                "-delete",
                file,
            ])
            .arg("-jobad")
            .arg(job_ad)
            .args(more);
        run(&mut cleanup)
    }
}

const ENVIRONMENT: &str =
    "CKPT_GRID=grid.toml CKPT_KEY_FILE=job.key CKPT_RETRY=0 CKPT_LOG=ckpt.log";

const FILES: [&str; 4] = ["state/sum", "ballast", "_condor_stdout", "_condor_stderr"];

fn all_moved(answers: &[ClassAd]) -> bool {
    let moved = |answer: &ClassAd| answer.get("TransferSuccess") == Some(&Value::Boolean(true));
    answers.iter().all(moved)
}

fn stored(grid: &Grid) -> Result<usize> {
    let hosts = ["h01", "h02", "h03", "h04", "h05"];
    let counts = hosts.iter().map(|host| Ok(grid.shard_files(host)?.len()));
    counts.sum()
}

#[test]
fn a_plug_in_says_what_it_can_do() -> Result<()> {
    let mut plugin = command(["-classad"])?;
    let said = run(plugin.arg0("./ckpt_plugin"))?.expect(0)?;
    let said = String::from_utf8(said.stdout)?;
    for line in [
        "MultipleFileSupport = true",
        "PluginType = \"FileTransfer\"",
        "ProtocolVersion = 2",
        "SupportedMethods = \"ckpt\"",
    ] {
        ensure!(said.lines().any(|one| one == line), "{said}");
    }
    for name in ["ckpt_plugin", "ckpt_cleanup"] {
        let help = run(command(["--help"])?.arg0(name))?.expect(0)?;
        ensure!(String::from_utf8(help.stdout)?.contains("CKPT_KEY_FILE"));
        // 2 would mean to HTCondor that credentials have to be renewed.
        let wrong = run(command(["save"])?.arg0(name))?.expect(1)?;
        ensure!(wrong.stderr.contains("try: --help"), "{wrong}");
    }
    Ok(())
}

/// Saves three checkpoints, each a little different from the one before, and returns the ballast of each.
fn save_three(job: &Sandbox) -> Result<Vec<Vec<u8>>> {
    // Smaller images are always stored whole.
    let mut ballast = vec![0; 6 << 20];
    SmallRng::seed_from_u64(19).fill(ballast.as_mut_slice());
    let mut all = Vec::new();
    for (number, text) in ["0000", "0001", "0002"].iter().zip(["zero", "one", "two"]) {
        ballast[1 << 20] ^= 1 << all.len();
        job.write("state/sum", text.as_bytes())?;
        job.write("ballast", &ballast)?;
        job.write("_condor_stdout", b"begins\n")?;
        job.write("_condor_stderr", b"")?;
        let (ended, answers) = job.transfer(number, &FILES, true)?;
        ended.expect(0)?;
        ensure!(all_moved(&answers), "{answers:?}");
        let bytes = answers[1].get("TransferTotalBytes");
        ensure!(bytes == Some(&Value::Integer(6 << 20)), "{answers:?}");
        all.push(ballast.clone());
    }
    Ok(all)
}

#[test]
fn a_checkpoint_goes_there_and_back() -> Result<()> {
    let grid = Grid::up(5)?;
    let job = Sandbox::new(&grid, "dir_1", ENVIRONMENT)?;
    let ballasts = save_three(&job)?;
    ensure!(grid.versions(JOB)? == [1, 2, 3]);
    let second = [
        "--json",
        "list",
        "--job",
        JOB,
        "--label",
        "checkpoint-number=1",
    ];
    let listed = grid.run(second)?.expect(0)?.json()?;
    ensure!(listed["checkpoints"][0]["version"] == 2, "{listed}");
    let bytes = |at: usize| listed["checkpoints"][at]["stored_bytes"].as_u64();
    ensure!(
        bytes(0) < Some(1 << 20),
        "what did not change is stored once: {listed}"
    );

    // The job moves to another machine; one shard is damaged and one host is dead.
    let holders = grid.holders(JOB)?;
    for shard in grid.shard_files(&holders[1])? {
        flip(&shard, 5000)?;
    }
    grid.kill(&holders[0])?;
    let next = Sandbox::new(&grid, "dir_2", ENVIRONMENT)?;
    let (ended, answers) = next.transfer("0001", &FILES, false)?;
    ended.expect(0)?;
    ensure!(all_moved(&answers), "{answers:?}");
    ensure!(next.read("state/sum")? == b"one" && next.read("_condor_stdout")? == b"begins\n");
    ensure!(next.read("ballast")? == ballasts[1], "another checkpoint's");
    let names = fs::read_dir(&next.dir)?.filter_map(|one| one.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
    names.sort();
    ensure!(
        names == [".ckpt_plugin.in", ".ckpt_plugin.out", ".job.ad"],
        "{names:?}"
    );
    Ok(())
}

#[test]
fn clean_up_keeps_what_later_checkpoints_need_and_in_the_end_removes_all() -> Result<()> {
    let grid = Grid::up(5)?;
    let job = Sandbox::new(&grid, "dir_1", ENVIRONMENT)?;
    save_three(&job)?;
    grid.kill("h01")?;
    // Later checkpoints build on the first. The host that was away hears of the removal from other hosts.
    for (number, left) in [("0000", &[1, 2, 3][..]), ("0001", &[1, 3])] {
        let begun = Instant::now();
        job.cleanup(number, "state/sum", &[])?.expect(0)?;
        let took = begun.elapsed();
        // A clean-up takes less than two seconds on an idle machine.
        ensure!(took < Duration::from_secs(15), "{took:?}");
        ensure!(grid.versions(JOB)? == left, "{number}");
    }
    grid.restart()?;
    for number in ["0000", "0001", "0002"] {
        for file in FILES {
            job.cleanup(number, file, &[])?.expect(0)?;
        }
    }
    wait_until("no host holds a shard", Duration::from_secs(60), || {
        Ok(stored(&grid)? == 0)
    })
}

#[test]
fn an_upload_makes_one_version_or_none() -> Result<()> {
    let grid = Grid::up(5)?;
    let job = Sandbox::new(&grid, "dir_1", ENVIRONMENT)?;
    job.write("one", b"1")?;
    job.write("two", b"2")?;
    let refused = |answers: &[ClassAd], why: &str| {
        let is_so = |answer: &ClassAd| {
            let error = String::from_utf8_lossy(answer.text("TransferError").unwrap_or_default())
                .into_owned();
            answer.get("TransferSuccess") == Some(&Value::Boolean(false)) && error.contains(why)
        };
        answers.iter().all(is_so)
    };
    // One of the files does not exist.
    let (ended, answers) = job.transfer("0000", &["one", "none"], true)?;
    ended.expect(1)?;
    ensure!(refused(&answers, "none"), "{answers:?}");
    // The files belong to two checkpoints.
    let mut call = job.call("0000", &["one", "two"], true)?;
    let items = String::from_utf8(job.read(".ckpt_plugin.in")?)?;
    job.write(
        ".ckpt_plugin.in",
        items.replacen("/0000/two", "/0001/two", 1).as_bytes(),
    )?;
    run(&mut call)?.expect(1)?;
    ensure!(refused(
        &job.answers(&["one", "two"])?,
        "is not of checkpoint 0"
    ));
    // The URLs name another grid than the grid file; the infile lacks a field; others may read the key.
    job.write(
        ".ckpt_plugin.in",
        items.replace("ckpt://grid/", "ckpt://lab/").as_bytes(),
    )?;
    run(&mut job.call_as_it_is(true)?)?.expect(1)?;
    ensure!(refused(
        &job.answers(&["one", "two"])?,
        "is for grid \"grid\", not for \"lab\""
    ));
    job.write(".ckpt_plugin.in", b"[ Url = \"ckpt://grid/x\" ]")?;
    let ended = run(&mut job.call_as_it_is(true)?)?.expect(1)?;
    ensure!(
        ended.stderr.contains("lacks Url or LocalFileName"),
        "{ended}"
    );
    fs::set_permissions(job.dir.join("job.key"), fs::Permissions::from_mode(0o644))?;
    let (ended, answers) = job.transfer("0000", &["one", "two"], true)?;
    ended.expect(1)?;
    ensure!(refused(&answers, "job.key"), "{answers:?}");
    ensure!(grid.versions(JOB)?.is_empty() && stored(&grid)? == 0);

    // A symbolic link is saved as the file that it points to.
    fs::set_permissions(job.dir.join("job.key"), fs::Permissions::from_mode(0o600))?;
    symlink("two", job.dir.join("latest"))?;
    let (ended, answers) = job.transfer("0000", &["one", "latest"], true)?;
    ended.expect(0)?;
    ensure!(all_moved(&answers), "{answers:?}");
    let next = Sandbox::new(&grid, "dir_2", ENVIRONMENT)?;
    let (ended, answers) = next.transfer("0000", &["latest", "two"], false)?;
    ended.expect(1)?;
    ensure!(next.read("latest")? == b"2", "the file of the link");
    ensure!(
        refused(&answers[1..], "has no file") && all_moved(&answers[..1]),
        "{answers:?}"
    );
    let (ended, answers) = next.transfer("0007", &["one"], false)?;
    ended.expect(1)?;
    ensure!(refused(&answers, "checkpoint-number=7"), "{answers:?}");
    Ok(())
}

#[test]
fn an_upload_to_too_few_hosts_is_tried_again_within_the_call() -> Result<()> {
    let grid = Grid::up(5)?;
    let job = Sandbox::new(&grid, "dir_1", &ENVIRONMENT.replace("RETRY=0", "RETRY=60s"))?;
    job.write("one", b"1")?;
    // Two hosts are left, and three are needed.
    let away = ["h01", "h02", "h03"];
    away.iter().try_for_each(|host| grid.kill(host))?;
    let call = job.call("0000", &["one"], true)?.spawn()?;
    let log = job.dir.join("ckpt.log");
    wait_until("the first try has failed", Duration::from_secs(30), || {
        Ok(fs::read_to_string(&log).is_ok_and(|log| log.contains("again in")))
    })?;
    grid.restart()?;
    wait(call)?.expect(0)?;
    ensure!(all_moved(&job.answers(&["one"])?));
    ensure!(grid.versions(JOB)? == [1]);
    // With CKPT_RETRY=0 the call fails at once, and names the hosts that are away.
    away.iter().try_for_each(|host| grid.kill(host))?;
    job.write_ad(ENVIRONMENT)?;
    let (ended, answers) = job.transfer("0001", &["one"], true)?;
    ended.expect(1)?;
    let error =
        String::from_utf8_lossy(answers[0].text("TransferError").unwrap_or_default()).into_owned();
    ensure!(error.contains("h01"), "{error}");
    let outfile = String::from_utf8(job.read(".ckpt_plugin.out")?)?;
    ensure!(outfile.contains("ErrorType = \"Contact\""), "{outfile}");
    Ok(())
}

#[test]
fn clean_up_of_a_failed_upload_removes_it_alone_and_can_be_repeated() -> Result<()> {
    let grid = Grid::up(5)?;
    let job = Sandbox::new(&grid, "dir_1", ENVIRONMENT)?;
    for number in ["0000", "0001", "0002"] {
        job.write("one", number.as_bytes())?;
        job.transfer(number, &["one"], true)?.0.expect(0)?;
    }
    let more = ["-ignore-missing-files"];
    job.cleanup("0002", "one", &more)?.expect(0)?;
    ensure!(grid.versions(JOB)? == [1, 2]);
    job.cleanup("0002", "one", &more)?.expect(0)?;
    job.cleanup("0009", "one", &more)?.expect(0)?;
    ensure!(grid.versions(JOB)? == [1, 2], "others are needed");
    // Hosts don't let a job key remove the newest version, even with the right to remove.
    fs::rename(grid.path("grid/owner.key"), grid.path("owner.key"))?;
    let ended = job.cleanup("0001", "one", &[])?.expect(1)?;
    ensure!(
        ended
            .stderr
            .contains("a job key can't remove the newest two versions"),
        "{ended}"
    );
    fs::rename(grid.path("owner.key"), grid.path("grid/owner.key"))?;
    // With all hosts away the plug-in fails, so that HTCondor calls it again later.
    for host in ["h01", "h02", "h03", "h04", "h05"] {
        grid.kill(host)?;
    }
    job.cleanup("0001", "one", &[])?.expect(5)?;
    grid.restart()?;
    job.cleanup("0001", "one", &[])?.expect(0)?;
    ensure!(stored(&grid)? == 0);
    job.cleanup("0001", "one", &[])?.expect(0)?;
    Ok(())
}
