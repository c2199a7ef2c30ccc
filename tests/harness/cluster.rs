//! Daemons and registries whose networks, disks and clocks a test can disturb. Each is behind a relay.
//! Hosts have a small file system of their own where one can be mounted, and all have a clock that can
//! be set where libfaketime is installed. With `CKPT_KEEP_CLUSTER` set, data and logs stay in the directory for
//! temporary files.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::grid::{Grid, GridHost, GridRegistry};
use protocol::identity::{HostId, Identity, Role, read_key};
use rustix::process::{Pid, Signal, kill_process};

use crate::liar::{Hoard, Liar, Lie};
use crate::machines::{in_home, tokens_of};
use crate::members::{self, Members};
use crate::port::free_address;
use crate::program::{Outcome, command, run, wait_until};
use crate::relay::Relay;

/// Size of a host's file system, in MiB.
const DISK_MB: u32 = 96;

/// Where libfaketime may be: preloaded, it shows a program another time of day.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// A daemon or a registry.
#[derive(Debug)]
pub struct Node {
    /// Its name in the grid file.
    pub name: String,
    /// The network between it and all others.
    pub relay: Relay,
    verb: &'static str,
    dir: PathBuf,
    listen: SocketAddr,
    child: Mutex<Option<Child>>,
    /// The token with which it has still to join.
    token: Mutex<Option<String>>,
}

/// What a test can disturb on this machine besides processes and networks.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    /// Hosts have file systems that can be filled.
    pub disks: bool,
    /// Hosts have clocks that can be set.
    pub clocks: bool,
}

/// Hosts, registries, and a submitter.
#[derive(Debug)]
pub struct Cluster {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
    /// The daemons.
    pub hosts: Vec<Node>,
    /// The registries.
    pub registries: Vec<Node>,
    /// What this machine lets a test disturb.
    pub powers: Powers,
    /// Whether the grid file lists the hosts; else they joined with tokens, as the README's do.
    is_listed: bool,
    /// The submitter's grid file.
    grid_file: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it belongs to the grid already.
    pub fn has_joined(&self) -> bool {
        self.token().is_none()
    }

    /// Data directory of the daemon or registry.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Kills the process, if it runs, and waits until it is gone.
    ///
    /// # Errors
    /// When it can't be killed.
    pub fn kill(&self) -> Result<()> {
        if let Some(mut child) = self.child().take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks the process to end, if it runs, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn end(&self, limit: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        wait_until("a daemon ends", limit, || {
            let mut child = self.child();
            let Some(running) = child.as_mut() else {
                return Ok(true);
            };
            let has_ended = running.try_wait()?.is_some();
            if has_ended {
                *child = None;
            }
            Ok(has_ended)
        })
    }

    /// Sends a signal to the process, if it runs.
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if let Some(pid) = self.pid() {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    fn pid(&self) -> Option<Pid> {
        let child = self.child();
        Pid::from_raw(i32::try_from(child.as_ref()?.id()).ok()?)
    }

    /// Most memory in bytes that the process had at any time since its start; `None` if it does not run.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = format!("/proc/{}/status", self.pid()?.as_raw_nonzero());
        let status = fs::read_to_string(status).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line?.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib << 10)
    }

    /// Sets its clock `off_s` seconds ahead of the machine's clock, or behind it if negative.
    ///
    /// # Errors
    /// When the file from which libfaketime reads the offset can't be written.
    pub fn set_clock(&self, off_s: i64) -> Result<()> {
        let file = self.dir.join("clock");
        fs::write(&file, format!("{off_s:+}\n"))?;
        Ok(())
    }

    /// Fills its disk, or removes what filled it.
    ///
    /// # Errors
    /// When the file that filled the disk can't be removed.
    pub fn fill_disk(&self, fill: bool) -> Result<()> {
        let filler = self.data().join("filler");
        if fill {
            // The write fails once the disk is full, which is the purpose.
            let _ = fs::write(&filler, vec![1; (DISK_MB as usize) << 20]);
        } else {
            fs::remove_file(&filler)?;
        }
        Ok(())
    }

    /// The shard files in its data directory.
    ///
    /// # Errors
    /// When a directory can't be read.
    pub fn shard_files(&self) -> Result<Vec<PathBuf>> {
        self.files_of("shards")
    }

    /// The files of one kind in its data directory: `shards`, `manifests`, `notices` or `fences`.
    ///
    /// # Errors
    /// When a directory can't be read.
    pub fn files_of(&self, kind: &str) -> Result<Vec<PathBuf>> {
        crate::grid::files_of_owners(&self.data().join(kind))
    }
}

impl Cluster {
    /// Starts this many hosts and registries, with these environment variables.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start(hosts: usize, registries: usize, env: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(hosts, registries, &[], env)
    }

    /// Like [`Self::start`], with etcd at these addresses as a further registry. If there are any, the grid
    /// file names only the first host.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start_with(
        hosts: usize,
        registries: usize,
        etcd: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let cluster = Self::of(hosts, registries, env)?;
        cluster.write_files(etcd)?;
        cluster.start_stopped()?;
        Ok(cluster)
    }

    /// Like [`Self::start`], by the README: an authority, at least one registry, and hosts and a submitter
    /// that join with tokens. The last `later` hosts have not joined yet.
    ///
    /// # Errors
    /// When a command fails, or a daemon does not start.
    pub fn start_joined(
        hosts: usize,
        later: usize,
        registries: usize,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let mut cluster = Self::of(hosts, registries, env)?;
        cluster.is_listed = false;
        cluster.grid_file = cluster.path("owner/config/ckpt/grid.toml");
        // Without a token yet, no host is started.
        for host in &cluster.hosts {
            *host.token() = Some(String::new());
        }
        let tokens = cluster.found()?;
        for (host, token) in cluster.hosts.iter().zip(tokens) {
            *host.token() = Some(token);
        }
        for host in cluster.hosts.iter().take(hosts.saturating_sub(later)) {
            cluster.join(host)?;
        }
        Ok(cluster)
    }

    /// Lays out a grid of this many hosts and registries, of which nothing runs.
    fn of(hosts: usize, registries: usize, env: &[(&str, &str)]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let dir = tempfile::Builder::new()
            .prefix("ckpt-cluster-")
            .disable_cleanup(std::env::var_os("CKPT_KEEP_CLUSTER").is_some())
            .tempdir()?;
        let mut cluster = Self {
            is_listed: true,
            grid_file: dir.path().join("grid.toml"),
            dir,
            env: env.iter().map(owned).collect(),
            hosts: Vec::new(),
            registries: Vec::new(),
            powers: Powers {
                disks: true,
                clocks: faketime().is_some(),
            },
            runtime,
        };
        for number in 1..=hosts {
            let node = cluster.node(&format!("h{number:02}"), "serve")?;
            cluster.powers.disks &= mount(&node.data());
            cluster.hosts.push(node);
        }
        for number in 1..=registries {
            let node = cluster.node(&format!("r{number}"), "registry")?;
            cluster.registries.push(node);
        }
        Ok(cluster)
    }

    /// Makes the authority and the registries, starts these, and has the submitter join. Returns a token for
    /// each host.
    fn found(&self) -> Result<Vec<String>> {
        let [first, others @ ..] = self.registries.as_slice() else {
            bail!("hosts can't join without a registry");
        };
        let addr = first.relay.addr.to_string();
        let data = first.data();
        let init = ["grid", "init", "--name", "cluster", "--registry", &addr];
        let data = ["--registry-data", text(&data)?];
        self.admin([init.as_slice(), &data].concat())?;
        for registry in others {
            self.add_registry(registry)?;
        }
        self.start_stopped()?;
        let count = self.hosts.len().to_string();
        let invite = [
            "--json",
            "grid",
            "invite",
            "--registry",
            // The name that `grid init` gives to the first one.
            "registry",
            "--submitters",
            "1",
            "--count",
            &count,
        ];
        let made = self.admin(invite.to_vec())?.json()?;
        let mut tokens = tokens_of(&made)?;
        let of_submitter = tokens.pop().context("no token")?;
        let mut join = command(["join", &of_submitter, "--name", "owner"])?;
        run(in_home(&mut join, &self.path("owner"))?)?.expect(0)?;
        Ok(tokens)
    }

    /// Enters a further registry, as the operations page does.
    fn add_registry(&self, registry: &Node) -> Result<()> {
        let data = registry.data();
        let file = |name: &str| text(&data.join(name)).map(str::to_owned);
        let name = registry.name.as_str();
        let init = [
            "init",
            "--role",
            "registry",
            "--name",
            name,
            "--data",
            text(&data)?,
        ];
        self.store(registry, &init)?;
        let addr = registry.relay.addr.to_string();
        let key = file("identity.pub")?;
        let certificate = file("identity.crt")?;
        let sign = ["grid", "sign", "--role", "registry", "--addr", &addr];
        let files = ["--pubkey", &key, "-o", &certificate];
        self.admin([sign.as_slice(), &files].concat())?;
        let enrol = file("enrol.crt")?;
        self.admin(vec!["grid", "delegate", name, "-o", &enrol])?;
        // Each registry, also the first one, starts with the list that has all of them.
        let authority = self.path("admin/data/ckpt/authority");
        for registry in &self.registries {
            for file in ["grid.toml", "grid.members"] {
                fs::copy(authority.join(file), registry.data().join(file))?;
            }
        }
        Ok(())
    }

    /// Has a host join with its token, starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When it can't join, or does not start.
    pub fn join(&self, host: &Node) -> Result<()> {
        let token = host.token().clone();
        if let Some(token) = token {
            let data = host.data();
            let join = ["join", &token, "--name", &host.name, "--data", text(&data)?];
            self.store(host, &join)?;
            *host.token() = None;
        }
        self.start_stopped()
    }

    fn admin(&self, args: Vec<&str>) -> Result<Outcome> {
        let mut command = command(args)?;
        run(in_home(&mut command, &self.path("admin"))?)?.expect(0)
    }

    fn store(&self, node: &Node, args: &[&str]) -> Result<Outcome> {
        let mut program = command(args)?;
        program.arg0("ckpt-store");
        run(in_home(&mut program, &node.dir)?)?.expect(0)
    }

    fn node(&self, name: &str, verb: &'static str) -> Result<Node> {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(dir.join("data"))?;
        let listen = free_address()?;
        let node = Node {
            name: name.to_owned(),
            relay: self.runtime.block_on(Relay::to(listen))?,
            verb,
            dir,
            listen,
            child: Mutex::new(None),
            token: Mutex::new(None),
        };
        node.set_clock(0)?;
        Ok(node)
    }

    fn write_files(&self, etcd: &[String]) -> Result<()> {
        let mut members = Members::of("cluster")?;
        let mut grid = members.grid();
        for node in &self.hosts {
            let id = members.enrol_in(&node.data(), &node.name, Role::Donor)?;
            grid.hosts
                .push(members::host(&node.name, node.relay.addr, id));
        }
        for node in &self.registries {
            grid.registries.push(GridRegistry {
                name: node.name.clone(),
                addr: node.relay.addr.into(),
                id: members.enrol_in(&node.data(), &node.name, Role::Registry)?,
            });
        }
        grid.owner = Some(members.owner_in(self.dir.path())?);
        if !etcd.is_empty() {
            grid.hosts.truncate(1);
        }
        grid.etcd = etcd.to_vec();
        Ok(grid.save(&self.grid_file)?)
    }

    /// Starts all daemons and registries that joined and do not run, and waits until all are ready.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start_stopped(&self) -> Result<()> {
        let joined = || self.nodes().filter(|node| node.has_joined());
        for node in joined() {
            if node.child().is_none() {
                self.start_node(node)?;
            }
        }
        for node in joined() {
            let ready = node.dir.join("ready");
            wait_until("a daemon is ready", Duration::from_secs(60), || {
                if let Some(status) = node.child().as_mut().and_then(|c| c.try_wait().ok()?) {
                    let log = fs::read_to_string(node.dir.join("log")).unwrap_or_default();
                    anyhow::bail!("{} ended ({status}): {log}", node.name);
                }
                Ok(ready.exists())
            })?;
        }
        Ok(())
    }

    fn start_node(&self, node: &Node) -> Result<()> {
        let ready = node.dir.join("ready");
        if ready.exists() {
            fs::remove_file(&ready)?;
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(node.dir.join("log"))?;
        let mut daemon = Command::new(crate::ckpt()?);
        daemon
            .arg0("ckpt-store")
            .arg(node.verb)
            .env_remove("CKPT_GRID")
            .arg("--data")
            .arg(node.data())
            .args(["--listen", &node.listen.to_string()])
            .arg("--ready-file")
            .arg(&ready)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if self.is_listed {
            daemon.arg("--grid").arg(&self.grid_file);
        } else if node.verb == "serve" {
            daemon.args(["--list-period", "1s"]);
        }
        if node.verb == "serve" {
            let announced = node.relay.addr.to_string();
            daemon.args([
                "--normal-priority",
                "--no-stand-back",
                "--reserve",
                "1MiB",
                "--announce",
                &announced,
            ]);
        }
        if let Some(library) = faketime() {
            daemon
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", node.dir.join("clock"))
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        *node.child() = Some(daemon.spawn().context("starting a daemon")?);
        Ok(())
    }

    /// Replaces a daemon that does not run by a host that lies. The liar has the daemon's identity and
    /// address, the shards on its disk, and those of `more`.
    ///
    /// # Errors
    /// When the files of the daemon can't be read, or its address is taken.
    pub fn impersonate(&self, node: &Node, lie: Lie, more: Hoard) -> Result<Liar> {
        let data = node.data();
        let secret = read_key(&data.join("identity.key"))?;
        let certificate = fs::read_to_string(data.join("identity.crt"))?;
        let identity = Identity::from_pem(secret, &certificate)?;
        let mut hoard = more;
        hoard.add(Hoard::read(&data)?);
        let mut grid = Grid::load(&self.grid_file)?;
        if !self.is_listed {
            grid.hosts = self.members()?;
        }
        let _inside = self.runtime.enter();
        let authority = grid.authority.clone();
        let liar = Liar::start_at(node.listen, &node.name, identity, authority, hoard)?;
        liar.lie(lie);
        liar.knows(&grid)?;
        if lie == Lie::ReplaysDeleted {
            let replay = liar.bring_back(&grid)?;
            self.runtime.spawn(async move { replay.run().await });
        }
        Ok(liar)
    }

    /// The hosts that have joined.
    fn members(&self) -> Result<Vec<GridHost>> {
        let joined = self.hosts.iter().filter(|host| host.has_joined());
        let member = |host: &Node| {
            let secret = read_key(&host.data().join("identity.key"))?;
            Ok(members::host(
                &host.name,
                host.relay.addr,
                HostId(secret.id()),
            ))
        };
        joined.map(member).collect()
    }

    /// Ends a host that lies, so that the daemon can be started again. Returns the shards that the liar had.
    ///
    /// # Errors
    /// When the liar's address does not become free.
    pub fn unmask(&self, node: &Node, liar: Liar) -> Result<Hoard> {
        let hoard = liar.hoard();
        drop(liar);
        wait_until("its address is free", Duration::from_secs(60), || {
            Ok(UdpSocket::bind(node.listen).is_ok())
        })?;
        Ok(hoard)
    }

    /// All hosts, then all registries.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.hosts.iter().chain(&self.registries)
    }

    /// A path in the directory of the cluster, for the test's own files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The submitter's grid file.
    pub fn grid_file(&self) -> &Path {
        &self.grid_file
    }

    /// Runs a `ckpt` command and waits for its end.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Outcome> {
        run(&mut self.command("state", args)?)
    }

    /// Like [`Self::run`], on a machine whose `ckpt` has a state directory of its own and, where clocks can
    /// be set, a clock that is `off_s` seconds ahead.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run_on<S: AsRef<OsStr>>(
        &self,
        machine: &str,
        off_s: i64,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Outcome> {
        let mut command = self.command(machine, args)?;
        if let Some(library) = faketime() {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME", format!("{off_s:+}"))
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        run(&mut command)
    }

    /// A `ckpt` command on a machine whose `ckpt` has a state directory of its own.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        machine: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        let mut command = command(args)?;
        command
            .env("CKPT_GRID", &self.grid_file)
            // Where the submitter's key is, if it joined with a token.
            .env("XDG_CONFIG_HOME", self.path("owner/config"))
            .env("CKPT_STATE_DIR", self.path(machine))
            .current_dir(self.dir.path());
        Ok(command)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes() {
            // SIGKILL also ends a process that is stopped.
            let _ = node.kill();
        }
        for node in &self.hosts {
            // Fails if no file system was mounted there.
            let _ = Command::new("umount")
                .arg("--lazy")
                .arg(node.data())
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no UTF-8")
}

/// The library that sets clocks, if it is installed.
pub fn faketime() -> Option<&'static str> {
    FAKETIME.into_iter().find(|path| Path::new(path).exists())
}

/// Mounts a small file system at `dir`, and returns whether that was possible.
fn mount(dir: &Path) -> bool {
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o"])
        .arg(format!("size={DISK_MB}m"))
        .arg("ckpt-test")
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    mount.status().is_ok_and(|status| status.success())
}
