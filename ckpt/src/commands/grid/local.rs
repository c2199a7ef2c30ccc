//! A grid of daemons on this machine.
//!
//! ```text
//! DIR/grid.toml            the grid file
//! DIR/authority.key,.crt   signs members; would be kept offline in a real grid
//! DIR/owner.key,.crt       the submitter
//! DIR/grid.members         the list of hosts that the authority signed
//! DIR/hosts/h01/           data directory of a daemon, or a link to it: identity, lock, shards, log
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use codec::OwnerId;
use protocol::address::Address;
use protocol::authority_dir::{AuthorityDir, Certify, HostEntry};
use protocol::grid::{Grid, OwnerFiles};
use protocol::identity::{Role, certificate_to_pem, new_key, read_key, replace_public, write_key};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use crate::commands::DaemonProgram;
use crate::commands::grid::authority;
use crate::commands::grid::authority_failure::failure;
use crate::commands::render::{Report, Table, json_of_self};
use ckpt_agent::report::{ExitStatus, Failure};
use protocol::errors::chain;

/// How long the certificates of a local grid are valid.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Usual number of hosts of a new grid.
const HOSTS_USUAL: u16 = 5;

/// Longest wait for a daemon to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for a daemon to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// One host of a local grid.
#[derive(Debug, Serialize)]
pub(crate) struct LocalHost {
    /// Name of the host.
    name: String,
    /// Its address.
    addr: String,
    /// The id of its process; `None` when it is down.
    pid: Option<i32>,
    /// Its data directory.
    data: PathBuf,
}

/// Answer of `ckpt grid up`, `ckpt grid status` and `ckpt grid add`.
#[derive(Debug, Serialize)]
pub(crate) struct GridReport {
    /// The grid file.
    grid: PathBuf,
    /// The hosts of the grid.
    hosts: Vec<LocalHost>,
    #[serde(skip)]
    advice: Option<String>,
}

impl Report for GridReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&["HOST", "ADDRESS", "STATE", "DATA"]);
        for host in &self.hosts {
            let state = host
                .pid
                .map_or("down".to_owned(), |pid| format!("up, pid {pid}"));
            let data = host.data.display().to_string();
            table.row(vec![host.name.clone(), host.addr.clone(), state, data]);
        }
        table.write(out)?;
        if let Some(advice) = &self.advice {
            writeln!(out, "{advice}")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// Answer of `ckpt grid down`.
#[derive(Debug, Serialize)]
pub(crate) struct DownReport {
    /// Names of the hosts that were stopped.
    stopped: Vec<String>,
    /// Hosts that did not end in time.
    pub(crate) still_running: Vec<String>,
}

impl Report for DownReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} hosts stopped", self.stopped.len())?;
        for name in &self.still_running {
            writeln!(out, "{name} does not stop")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// Starts all hosts that do not run. Makes the grid first if there is none.
pub(crate) fn up(
    dir: &Path,
    hosts: Option<u16>,
    capacity: Option<&str>,
    daemon: &DaemonProgram,
) -> Result<GridReport, Failure> {
    let dir = &std::path::absolute(dir).map_err(|cause| failed(dir, &cause))?;
    let file = dir.join("grid.toml");
    let mut grid = if file.exists() {
        load(dir)?
    } else {
        create(dir, hosts.unwrap_or(HOSTS_USUAL))?
    };
    let count = grid.hosts.len();
    if let Some(wanted) = hosts.filter(|wanted| usize::from(*wanted) > count) {
        let message = format!("{} is a grid of {count} hosts, not {wanted}", dir.display());
        let next = "the same without --hosts; for one more host: ckpt grid add";
        return Err(Failure::new(ExitStatus::Usage, message).next(next));
    }
    let mut starting = Vec::new();
    for (number, host) in grid.hosts.iter().enumerate() {
        let data = data_dir(dir, &host.name);
        if data.is_dir() && running(&data).is_none() {
            wait_until_ended(&data);
            let started = start(&file, &data, &host.addr, capacity, daemon)?;
            starting.push((number, data, started));
        }
    }
    for (number, data, mut child) in starting {
        let Some(host) = grid.hosts.get_mut(number) else {
            continue;
        };
        host.addr = match wait_ready(&data, &mut child) {
            // A host that is listed by its name keeps the name.
            Ok(_) if host.addr.ip().is_none() => continue,
            Ok(addr) => addr.into(),
            // Another program may have taken the port since.
            Err(cause) => {
                let Some(addr) = host.addr.ip() else {
                    return Err(cause);
                };
                let any = SocketAddr::new(addr.ip(), 0).into();
                let mut child = start(&file, &data, &any, capacity, daemon)?;
                wait_ready(&data, &mut child)?.into()
            }
        };
    }
    keep_addresses(dir, &grid)?;
    let mut report = report(dir, &grid);
    report.advice = Some(format!("export CKPT_GRID={}", file.display()));
    Ok(report)
}

/// Records the present addresses of the hosts: in a list that the authority signs or, if the authority's
/// key is not here, in the grid file.
fn keep_addresses(dir: &Path, grid: &Grid) -> Result<(), Failure> {
    if !dir.join("authority.key").exists() {
        let file = dir.join("grid.toml");
        return grid.save(&file).map_err(|e| failed(&file, &e));
    }
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let addresses = grid
        .hosts
        .iter()
        .map(|host| (host.id, host.addr.clone()))
        .collect();
    authority.relocate(&addresses).map_err(|e| failure(&e))
}

/// Reports which hosts run.
pub(crate) fn status(dir: &Path) -> Result<GridReport, Failure> {
    Ok(report(dir, &load(dir)?))
}

/// Stops all daemons of the grid.
pub(crate) fn down(dir: &Path) -> Result<DownReport, Failure> {
    let mut report = DownReport {
        stopped: Vec::new(),
        still_running: Vec::new(),
    };
    // What runs is seen without the grid file, which may be damaged.
    let hosts = hosts_of(dir)?.into_iter();
    let running_hosts: Vec<_> = hosts
        .map(|host| (data_dir(dir, &host), host))
        .filter_map(|(data, host)| Some((host, running(&data)?, data)))
        .collect();
    if running_hosts.is_empty() {
        load(dir)?;
    }
    for (_, pid, _) in &running_hosts {
        // Fails if it has just ended, which is the goal.
        let _ = kill_process(*pid, Signal::TERM);
    }
    let asked = Instant::now();
    for (host, _, data) in running_hosts {
        while running(&data).is_some() && asked.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let list = if running(&data).is_some() {
            &mut report.still_running
        } else {
            &mut report.stopped
        };
        list.push(host);
    }
    Ok(report)
}

/// Certifies one more host.
pub(crate) fn add(
    dir: &Path,
    name: &str,
    data: &Path,
    listen: &Address,
) -> Result<GridReport, Failure> {
    let grid = load(dir)?;
    if grid.hosts.iter().any(|host| host.name == name) {
        let message = format!("the grid has a host {name} already");
        return Err(Failure::new(ExitStatus::Usage, message).next("--name with another name"));
    }
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let listen = make_host(&mut authority, name, data, listen)?;
    let data = &std::path::absolute(data).map_err(|cause| failed(data, &cause))?;
    link_data(dir, name, data)?;
    let grid = authority.grid().clone();
    let file = dir.join("grid.toml");
    let mut report = report(dir, &grid);
    report.advice = Some(format!(
        "ckpt-store serve --grid {} --data {} --listen {listen}",
        file.display(),
        data.display()
    ));
    Ok(report)
}

fn load(dir: &Path) -> Result<Grid, Failure> {
    Grid::load(&dir.join("grid.toml")).map_err(|cause| {
        Failure::new(ExitStatus::Usage, chain(&cause))
            .next("--dir DIR of a grid that `ckpt grid up` made")
    })
}

fn report(dir: &Path, grid: &Grid) -> GridReport {
    let hosts = grid.hosts.iter().map(|host| {
        let data = data_dir(dir, &host.name);
        LocalHost {
            name: host.name.clone(),
            addr: host.addr.to_string(),
            pid: running(&data).map(|pid| pid.as_raw_nonzero().get()),
            data: shown_data(dir, &host.name),
        }
    });
    GridReport {
        grid: dir.join("grid.toml"),
        hosts: hosts.collect(),
        advice: None,
    }
}

/// Names of all hosts with a data directory here, or a link to one: also of those that are in the grid no
/// more, whose daemons may run on.
fn hosts_of(dir: &Path) -> Result<BTreeSet<String>, Failure> {
    let hosts = dir.join("hosts");
    let entries = match fs::read_dir(&hosts) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.map_err(|cause| failed(&hosts, &cause))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.collect())
}

/// The data directory of a host, or a link to it.
fn data_dir(dir: &Path, name: &str) -> PathBuf {
    dir.join("hosts").join(name)
}

/// Makes a link to the data directory of a host that is elsewhere, beside the data directories of the
/// others.
fn link_data(dir: &Path, name: &str, data: &Path) -> Result<(), Failure> {
    let dir = std::path::absolute(dir).map_err(|cause| failed(dir, &cause))?;
    let link = data_dir(&dir, name);
    if link == *data {
        return Ok(());
    }
    if let Some(above) = link.parent() {
        fs::create_dir_all(above).map_err(|cause| failed(above, &cause))?;
    }
    // The link of an earlier host of this name, which is not in the list any more.
    if link.is_symlink() {
        fs::remove_file(&link).map_err(|cause| failed(&link, &cause))?;
    }
    std::os::unix::fs::symlink(data, &link).map_err(|cause| failed(&link, &cause))
}

/// The real data directory of a host, for the user.
fn shown_data(dir: &Path, name: &str) -> PathBuf {
    let path = data_dir(dir, name);
    fs::read_link(&path).unwrap_or(path)
}

fn create(dir: &Path, hosts: u16) -> Result<Grid, Failure> {
    fs::create_dir_all(dir.join("hosts")).map_err(|e| failed(dir, &e))?;
    let name = dir
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("local");
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let name: String = name.chars().filter(|c| allowed(*c)).take(60).collect();
    let name = if name.is_empty() {
        "local".to_owned()
    } else {
        name
    };
    let secret = new_key().map_err(|e| failed(dir, &e))?;
    let mut authority = AuthorityDir::create(
        dir,
        &name,
        secret,
        authority::validity(CERTIFICATE_VALIDITY),
    )
    .map_err(|e| failure(&e))?;

    let owner = new_key().map_err(|e| failed(dir, &e))?;
    let owner_files = OwnerFiles {
        key: dir.join("owner.key"),
        certificate: dir.join("owner.crt"),
    };
    write_key(&owner_files.key, &owner).map_err(|e| failed(dir, &e))?;
    let roles = vec![Role::Submitter, Role::Admin];
    let certificate = certify(&mut authority, roles, "owner", owner.id(), None)?;
    write_certificate(&owner_files.certificate, &certificate)?;

    let width = hosts.to_string().len().max(2);
    for number in 1..=hosts {
        let name = format!("h{number:0width$}");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        make_host(&mut authority, &name, &data_dir(dir, &name), &listen)?;
    }
    let mut grid = authority.grid().clone();
    grid.owner = Some(owner_files);
    let file = dir.join("grid.toml");
    grid.save(&file).map_err(|e| failed(&file, &e))?;
    Ok(grid)
}

/// Makes key and certificate of a host in its data directory, and enters the host in the list. An
/// existing key is kept.
fn make_host(
    authority: &mut AuthorityDir,
    name: &str,
    data: &Path,
    listen: &Address,
) -> Result<Address, Failure> {
    fs::create_dir_all(data).map_err(|e| failed(data, &e))?;
    let key = data.join("identity.key");
    if !key.exists() {
        let secret = new_key().map_err(|e| failed(&key, &e))?;
        write_key(&key, &secret).map_err(|e| failed(&key, &e))?;
    }
    let id = read_key(&key).map_err(|e| failed(&key, &e))?.id();
    let listen = with_free_port(listen, authority.grid())?;
    let certificate = certify(authority, vec![Role::Donor], name, id, Some(&listen))?;
    write_certificate(&data.join("identity.crt"), &certificate)?;
    Ok(listen)
}

/// Tries to find a port that no other host of the grid has.
const PORT_TRIES: usize = 64;

/// The address with a port that is free now, if it has port 0: others could not reach a host there.
fn with_free_port(listen: &Address, grid: &Grid) -> Result<Address, Failure> {
    let Some(addr) = listen.ip().filter(|addr| addr.port() == 0) else {
        return Ok(listen.clone());
    };
    let no_port = |cause: &dyn std::fmt::Display| {
        let message = format!("no free port at {}: {cause}", addr.ip());
        Failure::new(ExitStatus::LocalIo, message).next("--listen ADDRESS:PORT, with a free port")
    };
    for _ in 0..PORT_TRIES {
        let socket = UdpSocket::bind(addr).map_err(|cause| no_port(&cause))?;
        let free = socket.local_addr().map_err(|cause| no_port(&cause))?;
        let free = Address::from(free);
        if grid.hosts.iter().all(|host| host.addr != free) {
            return Ok(free);
        }
    }
    Err(no_port(&"all that were tried are in the list of the grid"))
}

fn certify(
    authority: &mut AuthorityDir,
    roles: Vec<Role>,
    name: &str,
    key: OwnerId,
    listen: Option<&Address>,
) -> Result<CertificateDer<'static>, Failure> {
    // A little shorter than the authority's certificate, which was signed a moment ago.
    let lasting = CERTIFICATE_VALIDITY - Duration::from_secs(86_400);
    let wish = Certify {
        roles,
        name: name.to_owned(),
        key,
        validity: authority::validity(lasting),
        host: listen.map(|addr| HostEntry {
            addr: addr.clone(),
            site: None,
            owner: None,
        }),
    };
    authority.certify(&wish).map_err(|e| failure(&e))
}

fn write_certificate(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), Failure> {
    replace_public(path, certificate_to_pem(certificate).as_bytes()).map_err(|e| failed(path, &e))
}

/// Most bytes of a daemon's log.
const LOG_MAX: &str = "4MiB";

/// Starts a daemon that goes on when this process and its terminal are gone.
fn start(
    grid: &Path,
    data: &Path,
    addr: &Address,
    capacity: Option<&str>,
    daemon: &DaemonProgram,
) -> Result<Child, Failure> {
    let log_path = data.join("log");
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|e| failed(&log_path, &e))?;
    let ready = data.join("address");
    // The file of an earlier start would look like that of this one.
    let _ = fs::remove_file(&ready);
    let mut command = Command::new(&daemon.path);
    command
        .arg0(daemon.arg0)
        .arg("serve")
        .arg("--grid")
        .arg(grid)
        .arg("--data")
        .arg(data)
        .arg("--listen")
        .arg(addr.to_string())
        .arg("--ready-file")
        .arg(&ready)
        // The user's own machine: no owner to stand back for, and no space to leave to one.
        .args(["--normal-priority", "--no-stand-back", "--quota", "100%"])
        // A grid for trials has nobody who rotates logs.
        .args(["--log-max", LOG_MAX])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    if let Some(capacity) = capacity {
        command.args(["--capacity", capacity]);
    }
    command.spawn().map_err(|e| failed(&daemon.path, &e))
}

fn wait_ready(data: &Path, child: &mut Child) -> Result<SocketAddr, Failure> {
    let started = Instant::now();
    let ready = data.join("address");
    loop {
        if let Ok(addr) = fs::read_to_string(&ready).unwrap_or_default().parse() {
            return Ok(addr);
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || started.elapsed() > START_TIMEOUT {
            let what = match ended {
                Some(status) => format!("ended with {status}"),
                None => "does not answer".to_owned(),
            };
            let message = format!("host in {}: {what}\n{}", data.display(), log_tail(data));
            let log = data.join("log");
            return Err(Failure::new(ExitStatus::Failed, message).next(format!(
                "see {}, then the same command again",
                log.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn log_tail(data: &Path) -> String {
    let log = fs::read_to_string(data.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// The process that serves this data directory: it holds the lock on a file that contains its process id.
/// If the lock is free the number in the file is out of date. A killed daemon holds the lock until all
/// its threads have ended, but does not serve any more.
fn running(data: &Path) -> Option<Pid> {
    let mut file = locked(data)?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    // A negative number would be a group, or all processes.
    let number = text.trim().parse().ok().filter(|number| *number > 0)?;
    let pid = Pid::from_raw(number)?;
    (!is_ending(pid)).then_some(pid)
}

/// The file with the process id, if a process holds the lock on it.
fn locked(data: &Path) -> Option<File> {
    let file = File::open(data.join("lock")).ok()?;
    let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    (!is_free).then_some(file)
}

/// Waits until a killed daemon has ended: it holds its port as long as its lock, maybe while a disk syncs. Another
/// one would have to take another port, at which running clients do not look at once.
fn wait_until_ended(data: &Path) {
    let begun = Instant::now();
    while locked(data).is_some() && begun.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_ending(pid: Pid) -> bool {
    let process = procfs::process::Process::new(pid.as_raw_nonzero().get());
    let stat = process.and_then(|process| process.stat());
    stat.is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'))
}

fn failed(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}

/// Kills the daemon of a host with SIGKILL.
pub(crate) fn kill(dir: &Path, name: &str) -> Result<(), Failure> {
    let data = data_dir(dir, name);
    let pid = running(&data).ok_or_else(|| {
        Failure::new(ExitStatus::Failed, format!("host {name} does not run"))
            .next("ckpt grid status --dir DIR")
    })?;
    kill_process(pid, Signal::KILL).map_err(|e| failed(&data, &e))?;
    let killed = Instant::now();
    while running(&data).is_some() && killed.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_daemon_that_is_killed_and_not_gone_yet_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("lock");
        // A process that has ended, and of which nobody has asked the status.
        let mut ended = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&ended);
        while !is_ending(pid) {
            std::thread::yield_now();
        }
        fs::write(&lock, pid.as_raw_nonzero().to_string()).unwrap();
        let held = File::open(&lock).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        assert!(running(dir.path()).is_none());
        let is_released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                is_released.store(true, Ordering::SeqCst);
                drop(held);
            });
            wait_until_ended(dir.path());
            assert!(is_released.load(Ordering::SeqCst));
        });
        ended.wait().unwrap();
    }
}
