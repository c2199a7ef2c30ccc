//! A grid with one host, and members of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use ckpt_store::monitor::outlook::Predictor;
use ckpt_store::registry::{MEMORY_USUAL, RegistryConfig};
use ckpt_store::{Daemon, DaemonConfig, Quota};
use codec::grant::Rights;
use codec::keys::{JobKeys, NewJobKeys};
use codec::seal::OwnerSecret;
use protocol::grid::Grid;
use protocol::identity::{
    Authority, HostId, Identity, JoinToken, Role, TokenRole, TokenTerms, Validity,
    certificate_to_pem, write_key,
};
use protocol::list::GridList;
use tempfile::TempDir;

pub(crate) const MIB: usize = 1 << 20;

/// The authority of a grid, and a directory for its files.
pub(crate) struct Lab {
    pub(crate) dir: TempDir,
    pub(crate) grid: Grid,
    authority: Authority,
    host: Identity,
    next_key: AtomicU8,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let authority = Authority::create(OwnerSecret::new([200; 32]), "lab", validity()).unwrap();
        let grid = Grid::new("lab", authority.certificate().clone());
        let host = member(&authority, 100, &[Role::Donor]);
        let dir = TempDir::new().unwrap();
        grid.save(&dir.path().join("grid.toml")).unwrap();
        Self {
            dir,
            grid,
            authority,
            host,
            next_key: AtomicU8::new(1),
        }
    }

    /// A new member with this role.
    pub(crate) fn member(&self, role: Role) -> Identity {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        member(&self.authority, key, &[role])
    }

    /// A member with this role and name.
    pub(crate) fn named(&self, role: Role, name: &str) -> Identity {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        self.certified(OwnerSecret::new([key; 32]), role, name, validity())
    }

    /// The same key with a new certificate, which ends later.
    pub(crate) fn renewed(&self, secret: OwnerSecret, role: Role, name: &str) -> Identity {
        let lasting = validity().lasting * 2;
        let validity = Validity {
            lasting,
            ..validity()
        };
        self.certified(secret, role, name, validity)
    }

    fn certified(
        &self,
        secret: OwnerSecret,
        role: Role,
        name: &str,
        validity: Validity,
    ) -> Identity {
        let signed = self.authority.sign(&[role], name, secret.id(), validity);
        Identity::new(secret, signed.unwrap()).unwrap()
    }

    /// A job key of this submitter.
    pub(crate) fn job_key(&self, owner: &Identity) -> Identity {
        let new = NewJobKeys {
            grid: self.grid.id().0,
            scope: "42".parse().unwrap(),
            rights: Rights::SAVE,
            serial: 1,
            not_before: validity().from,
            not_after: validity().from + 3600,
        };
        let keys = JobKeys::issue(&owner.secret, [77; 32], new).unwrap();
        Identity::of_job(owner, keys).unwrap()
    }

    /// A list of the grid that the authority signed.
    pub(crate) fn list(&self, number: u64) -> GridList {
        GridList::sign(&self.authority, number, &self.grid.contents()).unwrap()
    }

    /// A registry that redeems tokens.
    pub(crate) fn registry(&self) -> RegistryConfig {
        let identity = self.member(Role::Registry);
        let data_dir = self.dir.path().join("registry");
        std::fs::create_dir_all(&data_dir).unwrap();
        let key = identity.secret.id();
        let delegated = self
            .authority
            .delegate("r1", key, &[Role::Donor], validity())
            .unwrap();
        std::fs::write(data_dir.join("enrol.crt"), certificate_to_pem(&delegated)).unwrap();
        RegistryConfig {
            metrics: None,
            grid: self.grid.clone(),
            grid_file: self.dir.path().join("grid.toml"),
            identity,
            data_dir,
            listen: ([127, 0, 0, 1], 0).into(),
            memory_bytes: MEMORY_USUAL,
        }
    }

    /// A token that this registry redeems.
    pub(crate) fn token(&self, registry: HostId, addr: SocketAddr) -> JoinToken {
        let terms = TokenTerms {
            registry,
            addr,
            role: TokenRole::Donor,
            list: 0,
            expires: validity().from + 600,
            nonce: [7; 16],
        };
        JoinToken::sign(&self.authority, terms)
    }

    pub(crate) fn host_id(&self) -> HostId {
        HostId(self.host.secret.id())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn config(&self) -> DaemonConfig {
        DaemonConfig {
            metrics: None,
            guest_sockets: Vec::new(),
            grid: self.grid.clone(),
            grid_file: None,
            gives_way_after: Duration::from_secs(30),
            identity: self.host.clone(),
            name: "h1".into(),
            data_dir: self.data(),
            listen: ([127, 0, 0, 1], 0).into(),
            announce: None,
            site: None,
            owner: None,
            capacity_bytes: Some(1 << 30),
            quota: Quota::default(),
            reserve_bytes: Some(0),
            memory_bytes: 128 << 20,
            repair: ckpt_store::repair::RepairSettings {
                rebuilds: false,
                ..Default::default()
            },
            scrub: None,
            list_period: Duration::from_secs(30),
            stand_back: false,
            predictor: Predictor::Hazard,
        }
    }

    /// A daemon in this process.
    pub(crate) async fn start(&self) -> Daemon {
        Daemon::start(&self.config()).await.unwrap()
    }

    /// The command that starts a daemon as a process.
    pub(crate) fn command(&self, data: &Path) -> Command {
        if !data.join("identity.key").exists() {
            std::fs::create_dir_all(data).unwrap();
            write_key(&data.join("identity.key"), &self.host.secret).unwrap();
            let pem = certificate_to_pem(&self.host.certificate);
            std::fs::write(data.join("identity.crt"), pem).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-store"));
        command
            .args([
                "serve",
                "--normal-priority",
                "--no-stand-back",
                "--reserve",
                "0",
            ])
            .arg("--grid")
            .arg(self.dir.path().join("grid.toml"))
            .arg("--data")
            .arg(data)
            .arg("--ready-file")
            .arg(data.join("ready"))
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A registry as a process.
    pub(crate) fn spawn_registry(&self, data: &Path, listen: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-store"));
        command
            .args(["registry", "--listen", listen, "--grid"])
            .arg(self.dir.path().join("grid.toml"))
            .arg("--data")
            .arg(data)
            .arg("--ready-file")
            .arg(data.join("ready"));
        Self::start_process(command, data, Duration::from_secs(60))
    }

    /// A daemon as a process that may take long to start. Its log has a line for each completed round of
    /// repair.
    pub(crate) fn spawn_slow(&self, data: &Path, args: &[&str], limit: Duration) -> Process {
        let mut command = self.command(data);
        command.args(args).env("RUST_LOG", "info,ckpt_store=debug");
        Self::start_process(command, data, limit)
    }

    fn start_process(mut command: Command, data: &Path, limit: Duration) -> Process {
        let log = std::fs::File::create(data.join("log")).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let ready = data.join("ready");
        let addr = wait_within(limit, "it is ready", || {
            let text = std::fs::read_to_string(&ready).ok()?;
            text.parse().ok()
        });
        Process { child, addr }
    }

    /// A daemon as a process.
    pub(crate) fn spawn(&self, data: &Path, args: &[&str]) -> Process {
        let ready = data.join("ready");
        // The file of an earlier run.
        let _ = std::fs::remove_file(&ready);
        let mut command = self.command(data);
        let log = std::fs::File::create(data.join("log")).unwrap();
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let child = command.args(args).stderr(log).spawn().unwrap();
        let read = || {
            std::fs::read_to_string(&ready)
                .unwrap_or_default()
                .parse()
                .ok()
        };
        let addr = wait_for("the daemon is ready", read);
        Process { child, addr }
    }
}

/// A daemon that runs as a process. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) addr: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls `ask` again and again until it returns a value.
pub(crate) fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait_within(Duration::from_secs(60), what, ask)
}

/// The same as [`wait_for`], with another time limit.
fn wait_within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn member(authority: &Authority, key: u8, roles: &[Role]) -> Identity {
    let secret = OwnerSecret::new([key; 32]);
    let name = format!("member-{key}");
    let certificate = authority
        .sign(roles, &name, secret.id(), validity())
        .unwrap();
    Identity::new(secret, certificate).unwrap()
}

fn validity() -> Validity {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Validity {
        from: now.unwrap().as_secs(),
        lasting: Duration::from_secs(3600),
    }
}
