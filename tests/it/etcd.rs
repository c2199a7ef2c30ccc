//! etcd as the only registry: hosts that are not in the grid file are found through it.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::cluster::Cluster;
use tests::image;
use tests::port::free_address;
use tests::program::wait_until;
use tests::skip::not_checked;

const LIMIT: Duration = Duration::from_secs(120);

/// A running etcd with a temporary directory.
struct Etcd {
    child: Child,
    addr: String,
    _dir: tempfile::TempDir,
}

impl Etcd {
    /// Starts etcd, and waits until it listens; `None` if etcd is not installed.
    fn start() -> Result<Option<Self>> {
        let dir = tempfile::tempdir()?;
        let addr = free_address()?.to_string();
        let peer = free_address()?;
        let client_url = format!("http://{addr}");
        let peer_url = format!("http://{peer}");
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir")
            .arg(dir.path())
            .args(["--listen-client-urls", &client_url])
            .args(["--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = match etcd.spawn() {
            Ok(child) => child,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(cause.into()),
        };
        let etcd = Self {
            child,
            addr,
            _dir: dir,
        };
        wait_until("etcd listens", LIMIT, || {
            Ok(TcpStream::connect(&etcd.addr).is_ok())
        })?;
        Ok(Some(etcd))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hosts that `ckpt hosts` shows as up.
fn up(cluster: &Cluster) -> Result<Vec<String>> {
    let report = cluster.run(["--json", "hosts"])?.json()?;
    let hosts = report["hosts"].as_array().context("hosts")?.clone();
    let up = hosts.iter().filter(|host| host["up"] == true);
    Ok(up
        .filter_map(|host| host["name"].as_str().map(str::to_owned))
        .collect())
}

#[test]
fn hosts_are_found_through_etcd_and_without_it_what_was_saved_is_restored() -> Result<()> {
    if !cfg!(feature = "etcd") {
        let how = "cargo test -p tests --features etcd; needs protoc and etcd";
        return not_checked("etcd as a registry", &format!("built without etcd: {how}"));
    }
    let Some(etcd) = Etcd::start()? else {
        return not_checked("etcd as a registry", "etcd is not installed (etcd-server)");
    };
    let env = [("CKPT_REPAIR_PERIOD", "1s"), ("CKPT_REPAIR_AFTER", "3s")];
    let addr = vec![etcd.addr.clone()];
    let cluster = Cluster::start_with(7, 0, &addr, &env)?;
    wait_until(
        "all hosts are found",
        LIMIT,
        || Ok(up(&cluster)?.len() == 7),
    )?;
    let bytes = image::memory(2 << 20, 3);
    fs::write(cluster.path("image"), &bytes)?;
    cluster.run(["save", "--job", "42", "image"])?.expect(0)?;
    // A lost shard is rebuilt, because hosts find each other through etcd.
    let shown = cluster.run(["--json", "show", "--job", "42"])?.json()?;
    let victim = shown["holders"][4]["host"].as_str().context("holder")?;
    let victim = cluster.hosts.iter().find(|host| host.name == victim);
    victim.context("no such host")?.kill()?;
    wait_until("the shard is rebuilt", LIMIT, || {
        let verified = cluster.run(["--json", "verify", "--job", "42"])?.json()?;
        Ok(verified["checkpoints"][0]["can_lose"] == 2)
    })?;
    // etcd drops the entry of the dead host when its lease ends.
    wait_until("the dead host is not listed any more", LIMIT, || {
        Ok(up(&cluster)?.len() == 6)
    })?;
    drop(etcd);
    let restored = cluster.run(["restore", "--job", "42", "-o", "out"])?;
    restored.expect(0)?;
    ensure!(fs::read(cluster.path("out"))? == bytes);
    Ok(())
}
