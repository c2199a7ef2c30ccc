//! A daemon with as many checkpoints as it takes, and with manifests as long as possible, stays within
//! its memory during rounds of repair.
//!
//! `CKPT_CHECKPOINTS` sets the number of checkpoints; a host takes at most 65,536.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codec::compress::Method;
use codec::index::StoredSegment;
use codec::keys::Keys;
use codec::manifest::{ImageKind, MANIFEST_BYTES_MAX, Manifest, NewManifest, Summary, Tail};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::shard_file::{
    BlockEntry, Footer, HEADER_BYTES, Header, Outline, ShardIdentity, TableBuilder,
};
use codec::{CheckpointId, Redundancy, ShardIndex, Version};
use protocol::grid::{GridHost, GridRegistry};
use protocol::identity::{HostId, Identity, Role, certificate_to_pem, write_key};
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{Lab, Process, wait_for};

/// Memory that the daemon may use, and what it may use beyond that.
const MEMORY_BYTES: u64 = 64 << 20;
const SLACK_BYTES: u64 = 32 << 20;

const OWNERS: u8 = 8;

/// Longest wait for anything: a debug build reads a directory of 65,536 checkpoints in minutes.
const LIMIT: Duration = Duration::from_secs(1800);

fn count() -> u64 {
    let set = std::env::var("CKPT_CHECKPOINTS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(4096)
}

/// A checkpoint of one byte whose manifest is nearly as long as a manifest may be.
struct Made {
    owner: OwnerSecret,
    manifest: Manifest,
    outline: Outline,
}

fn block(shard: ShardIndex, number: u64) -> [u8; 16] {
    let mut block = [shard.number(); 16];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn identity(number: u64, redundancy: Redundancy, shard: ShardIndex) -> ShardIdentity {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&number.to_le_bytes());
    ShardIdentity {
        checkpoint: CheckpointId(id),
        redundancy,
        shard,
    }
}

fn table(shard: ShardIndex, number: u64) -> (Vec<u8>, Outline) {
    let mut table = TableBuilder::default();
    table.push(BlockEntry::of(&block(shard, number)));
    let (page, outline) = table.finish();
    (page.unwrap(), outline)
}

fn make(number: u64) -> Made {
    let redundancy = Redundancy::new(1, 1).unwrap();
    let owner = OwnerSecret::new([50 + (number % u64::from(OWNERS)) as u8; 32]);
    let roots = redundancy.shards().map(|shard| {
        let (_, outline) = table(shard, number);
        outline.root(&identity(number, redundancy, shard))
    });
    let row = StoredSegment {
        raw_len: 1 << 20,
        stored_len: 1 << 20,
        method: Method::Raw,
    };
    let new = NewManifest {
        checkpoint: identity(number, redundancy, redundancy.shard(0).unwrap()).checkpoint,
        version: Version::new(number + 1).unwrap(),
        created: number,
        previous: None,
        redundancy,
        cipher: Cipher::Aes256Gcm,
        rows: 1,
        block_bytes: 16,
        roots: roots.collect(),
    };
    let summary = Summary {
        job: format!("job-{}", number % 512).parse().unwrap(),
        data_key: DataKey::new([9; 32]),
        kind: ImageKind::Stream,
        image_bytes: 1,
        stream_bytes: 1,
        stored_bytes: 1,
        files: 1,
        // Each entry takes eleven bytes.
        index: vec![row; 5900],
        tail: Tail::default(),
    };
    let keys = Keys::from(owner.clone());
    let manifest = Manifest::sign(&keys, new, &summary).unwrap();
    let (_, outline) = table(redundancy.shard(0).unwrap(), number);
    Made {
        owner,
        manifest,
        outline,
    }
}

/// Writes one shard of each checkpoint and its manifest into each of two data directories.
fn fill(data: [&Path; 2], count: u64) {
    for number in 0..count {
        let made = make(number);
        let public = made.manifest.public();
        assert!(made.manifest.bytes().len() > MANIFEST_BYTES_MAX / 10 * 9);
        let owner = made.owner.id();
        for (shard, data) in public.redundancy.shards().zip(data) {
            let (page, outline) = table(shard, number);
            assert_eq!(outline.rows, made.outline.rows);
            let identity = identity(number, public.redundancy, shard);
            let header = Header {
                identity,
                owner,
                job_tag: public.job_tag,
                version: public.version,
                created: 0,
            };
            let footer = Footer {
                root: outline.root(&identity),
                groups: vec![HEADER_BYTES as u64],
                outline,
            };
            let block = block(shard, number);
            let file = [&header.encode()[..], &block, &page, &footer.encode()].concat();
            let id = public.checkpoint.hex();
            let name = format!("{id}-{}.shard", shard.number());
            write(&data.join("shards").join(owner.hex()), &name, &file);
        }
        let dirs = data.map(|data| data.join("manifests").join(owner.hex()));
        let name = format!("{}.manifest", public.checkpoint.hex());
        write(&dirs[0], &name, made.manifest.bytes());
        // Both directories share the files of the manifests: 65,536 of them take 4 GiB.
        fs::create_dir_all(&dirs[1]).unwrap();
        fs::hard_link(dirs[0].join(&name), dirs[1].join(&name)).unwrap();
    }
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}

pub(crate) fn enrol(data: &Path, who: &Identity) {
    fs::create_dir_all(data).unwrap();
    write_key(&data.join("identity.key"), &who.secret).unwrap();
    let pem = certificate_to_pem(&who.certificate);
    fs::write(data.join("identity.crt"), pem).unwrap();
}

fn free_port() -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().to_string()
}

/// Waits until a daemon has done something.
fn wait_long(what: &str, mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The most memory that a process has ever used; `None` once it has ended.
fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn log_of(data: &Path) -> String {
    fs::read_to_string(data.join("log")).unwrap_or_default()
}

#[test]
fn whatever_it_holds_a_daemon_that_looks_after_it_stays_within_its_memory() {
    let mut lab = Lab::new();
    let data: [PathBuf; 2] = ["first", "second"].map(|name| lab.dir.path().join(name));
    fill([&data[0], &data[1]], count());
    let ports = [(); 3].map(|()| free_port());
    let members = [Role::Donor, Role::Donor, Role::Registry].map(|role| lab.member(role));
    for (number, (data, who)) in data.iter().zip(&members).enumerate() {
        enrol(data, who);
        lab.grid.hosts.push(GridHost {
            name: format!("h{number}"),
            addr: ports[number].parse().unwrap(),
            id: HostId(who.secret.id()),
            site: None,
            owner: None,
        });
    }
    let registry = lab.dir.path().join("registry");
    enrol(&registry, &members[2]);
    lab.grid.registries.push(GridRegistry {
        name: "r1".into(),
        addr: ports[2].parse().unwrap(),
        id: HostId(members[2].secret.id()),
    });
    lab.grid.save(&lab.dir.path().join("grid.toml")).unwrap();
    let _registry = lab.spawn_registry(&registry, &ports[2]);
    let settings = ["--repair-period", "300ms", "--scrub-pass", "1min"];
    let daemons: Vec<Process> = data
        .iter()
        .zip(&ports)
        .map(|(data, port)| {
            let args = [&settings[..], &["--listen", port]].concat();
            lab.spawn_slow(data, &args, LIMIT)
        })
        .collect();
    // Both daemons have completed rounds of repair, and each has proved its shards to the other.
    for data in &data {
        wait_long("a few rounds", || {
            let rounds = log_of(data);
            rounds.matches("checked the held checkpoints").count() >= 3
        });
        wait_for("proofs", || {
            let costs = ckpt_store::checking::load(data).ok()?;
            (costs.passed > 0 && costs.failed == 0).then_some(())
        });
    }
    let check = |what: &str, peak: u64| {
        eprintln!("{what}: {} KiB", peak >> 10);
        assert!(peak < MEMORY_BYTES + SLACK_BYTES, "{what}: {peak}");
    };
    for daemon in &daemons {
        check("rounds and scrub", peak_bytes(daemon.child.id()).unwrap());
    }
    // One daemon hands its shards over. The other holds a shard of each checkpoint, so no host can take
    // them.
    let leaving = &daemons[0];
    let pid = leaving.child.id();
    fs::write(data[0].join("drain"), "within 10").unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(process, Signal::TERM).unwrap();
    let mut peak = 0;
    wait_long("it leaves", || {
        let now = peak_bytes(pid);
        peak = peak.max(now.unwrap_or(0));
        now.is_none()
    });
    check("drain", peak);
}
