//! Hosts with links of their own: each is in a network namespace, and a bridge in another namespace joins
//! them. This needs root; without it ([`available`]) the caller has to report that it checks nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use protocol::identity::Role;

use crate::members::{self, Members};
use crate::program::{Outcome, command, run, wait_until};

/// UDP port of every daemon.
const PORT: u16 = 7000;

/// Most hosts of a network: their addresses are 10.77.0.1, 10.77.0.2, ...
const HOSTS_MAX: u8 = 200;

/// Address number of the machine on which `ckpt` runs; further machines without a daemon count down from it.
pub const CLIENT: u8 = 254;

static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// Whether network namespaces can be made on this machine and `tc` is installed; the error says why not.
pub fn available() -> Result<(), String> {
    let probe = format!("ckpt-{}-probe", std::process::id());
    let done = ip(["netns", "add", &probe]).and_then(|()| {
        let tc = Command::new("tc").arg("-V").stdout(Stdio::null()).status();
        ensure!(tc.is_ok_and(|tc| tc.success()), "no program tc");
        Ok(())
    });
    let _ = ip(["netns", "delete", &probe]);
    done.map_err(|cause| format!("{cause:#}"))
}

/// A grid whose hosts are `h1`, `h2`, ..., each with a link that can be limited.
#[derive(Debug)]
pub struct NetGrid {
    dir: tempfile::TempDir,
    prefix: String,
    hosts: u8,
    machines: u8,
    daemons: Vec<Child>,
}

impl NetGrid {
    /// Builds the network and starts `hosts` daemons. `ckpt` runs on a machine of its own, [`CLIENT`].
    ///
    /// # Errors
    /// When a namespace can't be made or a daemon does not start.
    pub fn up(hosts: u8) -> Result<Self> {
        Self::up_with(hosts, 1)
    }

    /// Like [`Self::up`], with `machines` machines without a daemon: [`CLIENT`], the number below, and so on.
    ///
    /// # Errors
    /// As [`Self::up`].
    pub fn up_with(hosts: u8, machines: u8) -> Result<Self> {
        ensure!(hosts <= HOSTS_MAX, "{hosts} hosts of at most {HOSTS_MAX}");
        let most = CLIENT - HOSTS_MAX;
        ensure!(machines <= most, "{machines} machines of at most {most}");
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let mut grid = Self {
            dir: tempfile::Builder::new().prefix("ckpt-net-").tempdir()?,
            prefix: format!("ckpt-{}-{number}", std::process::id()),
            hosts,
            machines,
            daemons: Vec::new(),
        };
        grid.build_network()?;
        grid.write_files()?;
        std::os::unix::fs::symlink(crate::ckpt()?, grid.daemon_program())?;
        for host in 1..=hosts {
            let daemon = grid.start_daemon(host)?;
            grid.daemons.push(daemon);
        }
        for host in 1..=hosts {
            let ready = grid.data_dir(host).join("ready");
            wait_until("a daemon is ready", Duration::from_secs(30), || {
                Ok(ready.exists())
            })?;
        }
        Ok(grid)
    }

    /// Limits what `host` can receive to `mbit_per_second`.
    ///
    /// # Errors
    /// When the link can't be shaped.
    pub fn limit(&self, host: u8, mbit_per_second: u32) -> Result<()> {
        self.in_switch(&format!(
            "tc qdisc replace dev p{host} root tbf rate {mbit_per_second}mbit burst 256kb latency 50ms"
        ))
    }

    /// Limits what `member` can send to `mbit_per_second`.
    ///
    /// # Errors
    /// When the link can't be shaped.
    pub fn limit_uplink(&self, member: u8, mbit_per_second: u32) -> Result<()> {
        let name = self.namespace(&member.to_string());
        in_namespace(
            &name,
            &format!(
                "tc qdisc replace dev eth0 root tbf rate {mbit_per_second}mbit burst 256kb latency 50ms"
            ),
        )
    }

    /// Runs a `ckpt` command on the machine without a daemon.
    ///
    /// # Errors
    /// When it can't be run or does not end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Outcome> {
        let mut inside = self.command(CLIENT, args)?;
        run(inside.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// A `ckpt` command on a machine, with that machine's state directory.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        machine: u8,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        let plain = command(args)?;
        let mut inside = self.inside(machine, crate::ckpt()?);
        inside
            .args(plain.get_args())
            .env("CKPT_GRID", self.path("grid.toml"))
            .env("CKPT_STATE_DIR", self.state_dir(machine))
            .env_remove("CKPT_KEY_FILE")
            .env_remove("CKPT_CERT_FILE")
            .env_remove("CKPT_COMPUTE_HOST")
            .current_dir(self.dir.path());
        Ok(inside)
    }

    /// State directory of `ckpt` on a machine.
    pub fn state_dir(&self, machine: u8) -> PathBuf {
        match machine {
            CLIENT => self.path("state"),
            other => self.path(&format!("state-{other}")),
        }
    }

    /// Kills the daemon of a host.
    ///
    /// # Errors
    /// When there is no such host, or its process can't be ended.
    pub fn kill(&mut self, host: u8) -> Result<()> {
        let at = usize::from(host)
            .checked_sub(1)
            .context("hosts count from 1")?;
        let daemon = self.daemons.get_mut(at).context("no such host")?;
        daemon.kill()?;
        daemon.wait()?;
        Ok(())
    }

    /// Starts the killed daemon of a host again.
    ///
    /// # Errors
    /// When the daemon does not start.
    pub fn revive(&mut self, host: u8) -> Result<()> {
        let ready = self.data_dir(host).join("ready");
        let _ = std::fs::remove_file(&ready);
        let daemon = self.start_daemon(host)?;
        let at = usize::from(host)
            .checked_sub(1)
            .context("hosts count from 1")?;
        *self.daemons.get_mut(at).context("no such host")? = daemon;
        wait_until("a daemon is ready", Duration::from_secs(30), || {
            Ok(ready.exists())
        })
    }

    /// A path for the test's own files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn build_network(&self) -> Result<()> {
        let switch = self.namespace("switch");
        ip(["netns", "add", &switch])?;
        self.in_switch("ip link add br0 type bridge")?;
        self.in_switch("ip link set br0 up")?;
        for member in self.members() {
            let name = self.namespace(&member.to_string());
            ip(["netns", "add", &name])?;
            let port = format!("p{member}");
            ip([
                "link", "add", "name", &port, "netns", &switch, "type", "veth", "peer", "name",
                "eth0", "netns", &name,
            ])?;
            self.in_switch(&format!("ip link set {port} master br0 up"))?;
            for line in [
                "ip link set lo up".to_owned(),
                format!("ip address add 10.77.0.{member}/24 dev eth0"),
                "ip link set eth0 up".to_owned(),
            ] {
                in_namespace(&name, &line)?;
            }
        }
        Ok(())
    }

    /// Address numbers of all hosts, then of the machines without a daemon.
    fn members(&self) -> impl Iterator<Item = u8> + use<> {
        (1..=self.hosts).chain((0..self.machines).map(|one| CLIENT - one))
    }

    fn write_files(&self) -> Result<()> {
        let mut members = Members::of("net")?;
        let mut grid = members.grid();
        for number in 1..=self.hosts {
            let name = format!("h{number}");
            let id = members.enrol_in(&self.data_dir(number), &name, Role::Donor)?;
            let addr = ([10, 77, 0, number], PORT).into();
            grid.hosts.push(members::host(name, addr, id));
        }
        grid.owner = Some(members.owner_in(self.dir.path())?);
        Ok(grid.save(&self.path("grid.toml"))?)
    }

    fn start_daemon(&self, host: u8) -> Result<Child> {
        let data = self.data_dir(host);
        let log = std::fs::File::create(data.join("log"))?;
        let mut daemon = self.inside(host, &self.daemon_program());
        daemon
            .args(["serve", "--normal-priority", "--no-stand-back", "--grid"])
            .arg(self.path("grid.toml"))
            .arg("--data")
            .arg(&data)
            .arg("--listen")
            .arg(format!("10.77.0.{host}:{PORT}"))
            .arg("--ready-file")
            .arg(data.join("ready"))
            .stdout(Stdio::null())
            .stderr(log);
        daemon.spawn().context("starting a daemon")
    }

    /// A program on a host or machine. `ip netns exec` replaces itself by the program, so the process id of
    /// the command is the program's.
    pub fn inside(&self, member: u8, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace(&member.to_string())])
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    fn in_switch(&self, line: &str) -> Result<()> {
        in_namespace(&self.namespace("switch"), line)
    }

    fn namespace(&self, member: &str) -> String {
        format!("{}-{member}", self.prefix)
    }

    fn data_dir(&self, host: u8) -> PathBuf {
        self.path(&format!("data-h{host}"))
    }

    fn daemon_program(&self) -> PathBuf {
        self.path("ckpt-store")
    }
}

impl Drop for NetGrid {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let members = self.members().map(|n| n.to_string());
        for member in members.chain(["switch".to_owned()]) {
            // Fails for namespaces that were never made because `build_network` failed.
            let _ = ip(["netns", "delete", &self.namespace(&member)]);
        }
    }
}

/// Machines with the addresses 10.0.0.1, 10.0.0.2, ..., on which nothing runs yet.
#[derive(Debug)]
pub struct Lan {
    prefix: String,
    machines: u8,
    /// The host name of all machines, if they have one name.
    hostname: Option<String>,
}

impl Lan {
    /// Builds a network of this many machines.
    ///
    /// # Errors
    /// When a namespace can't be made.
    pub fn new(machines: u8) -> Result<Self> {
        ensure!(
            machines <= HOSTS_MAX,
            "{machines} machines of at most {HOSTS_MAX}"
        );
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ckpt-{}-lan{number}", std::process::id());
        let lan = Self {
            prefix,
            machines,
            hostname: None,
        };
        let switch = lan.namespace(0);
        ip(["netns", "add", &switch])?;
        in_namespace(&switch, "ip link add br0 type bridge")?;
        in_namespace(&switch, "ip link set br0 up")?;
        for machine in 1..=machines {
            let name = lan.namespace(machine);
            let port = format!("p{machine}");
            ip(["netns", "add", &name])?;
            ip([
                "link", "add", "name", &port, "netns", &switch, "type", "veth", "peer", "name",
                "eth0", "netns", &name,
            ])?;
            in_namespace(&switch, &format!("ip link set {port} master br0 up"))?;
            in_namespace(&name, "ip link set lo up")?;
            in_namespace(
                &name,
                &format!("ip address add 10.0.0.{machine}/24 dev eth0"),
            )?;
            in_namespace(&name, "ip link set eth0 up")?;
        }
        Ok(lan)
    }

    /// Gives all machines this host name, in place of `m1`, `m2`, ...
    pub fn call_all(&mut self, name: &str) {
        self.hostname = Some(name.to_owned());
    }

    /// A shell on machine N that sets the host name `mN` and then runs `line`.
    pub fn shell(&self, machine: u8, line: &str) -> Command {
        let mut command = Command::new("ip");
        let own = || format!("m{machine}");
        let name = self.hostname.clone().unwrap_or_else(own);
        let named = format!("echo {name} > /proc/sys/kernel/hostname && {line}");
        command
            .args([
                "netns",
                "exec",
                &self.namespace(machine),
                "unshare",
                "--uts",
            ])
            .args(["sh", "-c", &named])
            .stdin(Stdio::null());
        command
    }

    fn namespace(&self, machine: u8) -> String {
        format!("{}-{machine}", self.prefix)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for machine in 0..=self.machines {
            // Fails for namespaces that were never made because `new` failed.
            let _ = ip(["netns", "delete", &self.namespace(machine)]);
        }
    }
}

fn in_namespace(name: &str, line: &str) -> Result<()> {
    ip(["netns", "exec", name].into_iter().chain(line.split(' ')))
}

fn ip<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let args: Vec<&str> = args.into_iter().collect();
    let output = Command::new("ip")
        .args(&args)
        .stdin(Stdio::null())
        .output()
        .context("running ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ip {}: {}",
        args.join(" "),
        said.trim()
    );
    Ok(())
}
