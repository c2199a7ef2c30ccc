//! The file that keeps what was observed: JSON, readable only by the user, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::notice::Stamp;
use codec::{CheckpointId, JobTag, OwnerId, Version};
use placement::bandwidth::{Measurement, RateHistory};
use protocol::address::Address;
use protocol::grid::GridHost;
use protocol::identity::HostId;
use serde::{Deserialize, Serialize};

use super::{Knowledge, KnownHost, Missed, SaveTimes, Sighting, SightingDetails};
use crate::core::gather::silence::GoesOn;
use crate::core::pool_watch::PoolWatch;
use crate::file_lock;

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Most hosts, and most jobs, that are kept; those that were contacted or saved last stay.
const KEPT_MAX: usize = 10_000;

/// How long another process that uses the file is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KnowledgeError {
    /// Reading or writing failed.
    #[error("{path}: {cause}")]
    Io {
        /// Path of the notebook.
        path: PathBuf,
        /// Why the system refused it.
        cause: io::Error,
    },
    /// The file has other content than expected.
    #[error("{path}: {what}")]
    Malformed {
        /// Path of the notebook.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
    /// Another process keeps the file locked.
    #[error("{0}: in use by another process")]
    Busy(PathBuf),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct FileText {
    version: u32,
    #[serde(default)]
    hosts: Vec<HostText>,
    #[serde(default)]
    saves: Vec<SaveText>,
    #[serde(default)]
    newest: Vec<NewestText>,
    /// Older programs neither know this field nor keep it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    goes_on: Vec<GoesOnText>,
    #[serde(default)]
    roster: Vec<RosterText>,
    /// Older programs neither know this field nor keep it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missed: Vec<MissedText>,
    /// Pairs of Unix seconds and bytes per second.
    #[serde(default)]
    uplink: Vec<(u64, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<PoolText>,
}

/// Times in hours since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct PoolText {
    since: u64,
    newest: u64,
    is_away: bool,
    /// Pairs of the first and the last hour.
    incidents: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HostText {
    id: String,
    good: f64,
    bad: f64,
    last_contact: u64,
    last_went_well: bool,
    last_probe: u64,
    /// Pairs of Unix seconds and bytes per second.
    rates: Vec<(u64, f64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SaveText {
    job_tag: String,
    at: u64,
    seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_seconds: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct GoesOnText {
    job_tag: String,
    at: u64,
    /// Whether it began anew.
    anew: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

impl GoesOnText {
    fn of((job, (at, goes_on)): (&JobTag, &(u64, GoesOn))) -> Self {
        let line = match goes_on {
            GoesOn::With(line) => line.map(Version::number),
            GoesOn::Anew => None,
        };
        Self {
            job_tag: job.hex(),
            at: *at,
            anew: *goes_on == GoesOn::Anew,
            line,
        }
    }

    fn read(self) -> Result<(JobTag, (u64, GoesOn)), String> {
        let tag =
            JobTag::from_hex(&self.job_tag).ok_or_else(|| format!("job tag {:?}", self.job_tag))?;
        let goes_on = match self.anew {
            true => GoesOn::Anew,
            false => GoesOn::With(self.line.and_then(Version::new)),
        };
        Ok((tag, (self.at, goes_on)))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RosterText {
    id: String,
    name: String,
    addr: Address,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MissedText {
    since: u64,
    /// Older programs neither know this field nor keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certified_until: Option<u64>,
    #[serde(flatten)]
    host: RosterText,
}

#[derive(Debug, Serialize, Deserialize)]
struct NewestText {
    job_tag: String,
    at: u64,
    version: u64,
    /// Older programs neither know this field nor keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    more: Option<NewestDetails>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NewestDetails {
    owner: String,
    job: String,
    created: u64,
    checkpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

const VERSION: u32 = 1;

/// The directory for this user's files of this kind: `$CKPT_STATE_DIR`, or else `ckpt` in `$XDG_STATE_HOME`
/// or in `~/.local/state`. `None` when the environment names none of these.
pub fn default_dir(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let state = || set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let home = || set("HOME").map(|home| home.join(".local/state"));
    set("CKPT_STATE_DIR").or_else(|| Some(state().or_else(home)?.join("ckpt")))
}

impl Knowledge {
    /// Reads the file at `path`; if there is no file, nothing is known.
    ///
    /// # Errors
    /// When it can't be read, or is not a file of this kind.
    pub fn load(path: &Path) -> Result<Self, KnowledgeError> {
        let failed = |cause| KnowledgeError::Io {
            path: path.to_owned(),
            cause,
        };
        match fs::metadata(path) {
            Ok(data) if data.len() > FILE_BYTES_MAX => {
                return Err(malformed(
                    path,
                    format!("larger than {FILE_BYTES_MAX} bytes"),
                ));
            }
            Ok(_) => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(cause) => return Err(failed(cause)),
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|what| malformed(path, what))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Why the text is not valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: FileText = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
        if file.version != VERSION {
            return Err(format!("version {} of the file is not known", file.version));
        }
        let mut known = Self::default();
        for host in file.hosts {
            let id = HostId::from_hex(&host.id).ok_or_else(|| format!("host id {:?}", host.id))?;
            let sensible = |weight: f64| {
                if weight.is_finite() {
                    weight.max(0.0)
                } else {
                    0.0
                }
            };
            let mut entry = KnownHost {
                good: sensible(host.good),
                bad: sensible(host.bad),
                last_contact: host.last_contact,
                last_went_well: host.last_went_well,
                last_probe: host.last_probe,
                ..KnownHost::default()
            };
            read_rates(&mut entry.rates, host.rates);
            known.hosts.insert(id, entry);
        }
        read_rates(&mut known.uplink, file.uplink);
        if let Some(pool) = file.pool {
            let PoolText {
                since,
                newest,
                is_away,
                incidents,
            } = pool;
            known.pool = PoolWatch::kept(since, newest, is_away, &incidents);
        }
        for save in file.saves {
            let tag = JobTag::from_hex(&save.job_tag)
                .ok_or_else(|| format!("job tag {:?}", save.job_tag))?;
            let is_time = |seconds: &f64| seconds.is_finite() && *seconds >= 0.0;
            if is_time(&save.seconds) {
                let times = SaveTimes {
                    seconds: save.seconds,
                    held_seconds: save.held_seconds.filter(is_time),
                };
                known.saves.insert(tag, (save.at, times));
            }
        }
        for host in file.roster {
            known.roster.push(host.read()?);
        }
        for missed in file.missed {
            known.missed.push(missed.read()?);
        }
        for newest in file.newest {
            let tag = JobTag::from_hex(&newest.job_tag)
                .ok_or_else(|| format!("job tag {:?}", newest.job_tag))?;
            // A number as large as this is no version: there must be room for the versions after it.
            if let Some(version) = Version::new(newest.version)
                && newest.version < u64::MAX / 2
            {
                let more = newest.more.map(NewestDetails::read).transpose()?;
                let seen = Sighting { version, more };
                known.newest.insert(tag, (newest.at, seen));
            }
        }
        let goes_on = file.goes_on.into_iter().map(GoesOnText::read);
        known.goes_on = goes_on.collect::<Result<_, _>>()?;
        Ok(known)
    }

    /// The text of the file; without the oldest entries if there are more than `KEPT_MAX`.
    pub fn to_text(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        hosts.sort_by_key(|(_, host)| std::cmp::Reverse(host.last_contact));
        hosts.truncate(KEPT_MAX);
        let mut saves: Vec<_> = self.saves.iter().collect();
        saves.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
        saves.truncate(KEPT_MAX);
        let mut newest: Vec<_> = self.newest.iter().collect();
        newest.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
        newest.truncate(KEPT_MAX);
        let mut goes_on: Vec<_> = self.goes_on.iter().collect();
        goes_on.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
        goes_on.truncate(KEPT_MAX);
        let file = FileText {
            version: VERSION,
            roster: self
                .roster
                .iter()
                .take(KEPT_MAX)
                .map(RosterText::of)
                .collect(),
            missed: self
                .missed
                .iter()
                .map(|missed| MissedText {
                    since: missed.seen_at,
                    certified_until: missed.certified_until,
                    host: RosterText::of(&missed.host),
                })
                .collect(),
            newest: newest
                .into_iter()
                .map(|(tag, (at, seen))| NewestText {
                    job_tag: tag.hex(),
                    at: *at,
                    version: seen.version.number(),
                    more: seen.more.as_ref().map(NewestDetails::of),
                })
                .collect(),
            goes_on: goes_on.into_iter().map(GoesOnText::of).collect(),
            uplink: rates_text(&self.uplink),
            pool: pool_text(&self.pool),
            hosts: hosts
                .into_iter()
                .map(|(id, host)| HostText {
                    id: id.hex(),
                    good: host.good,
                    bad: host.bad,
                    last_contact: host.last_contact,
                    last_went_well: host.last_went_well,
                    last_probe: host.last_probe,
                    rates: rates_text(&host.rates),
                })
                .collect(),
            saves: saves
                .into_iter()
                .map(|(tag, (at, times))| SaveText {
                    job_tag: tag.hex(),
                    at: *at,
                    seconds: times.seconds,
                    held_seconds: times.held_seconds,
                })
                .collect(),
        };
        // All numbers are finite and all texts valid, so this can't fail.
        serde_json::to_string(&file).unwrap_or_default()
    }
}

impl RosterText {
    fn of(host: &GridHost) -> Self {
        Self {
            id: host.id.hex(),
            name: host.name.clone(),
            addr: host.addr.clone(),
            site: host.site.clone(),
            owner: host.owner.clone(),
        }
    }

    fn read(self) -> Result<GridHost, String> {
        let id = HostId::from_hex(&self.id).ok_or_else(|| format!("host {:?}", self.id))?;
        Ok(GridHost {
            name: self.name,
            addr: self.addr,
            id,
            site: self.site,
            owner: self.owner,
        })
    }
}

impl MissedText {
    fn read(self) -> Result<Missed, String> {
        Ok(Missed {
            host: self.host.read()?,
            seen_at: self.since,
            certified_until: self.certified_until,
        })
    }
}

impl NewestDetails {
    fn of(more: &SightingDetails) -> Self {
        Self {
            owner: more.owner.hex(),
            job: more.job.as_str().to_owned(),
            created: more.stamp.created,
            checkpoint: more.stamp.checkpoint.hex(),
            until: more.until,
        }
    }

    fn read(self) -> Result<SightingDetails, String> {
        let owner = OwnerId::from_hex(&self.owner);
        let checkpoint = CheckpointId::from_hex(&self.checkpoint);
        Ok(SightingDetails {
            owner: owner.ok_or_else(|| format!("owner {:?}", self.owner))?,
            job: self
                .job
                .parse()
                .map_err(|_| format!("job {:?}", self.job))?,
            stamp: Stamp {
                created: self.created,
                checkpoint: checkpoint
                    .ok_or_else(|| format!("checkpoint {:?}", self.checkpoint))?,
            },
            until: self.until,
        })
    }
}

fn read_rates(history: &mut RateHistory, rates: Vec<(u64, f64)>) {
    for (at, bytes_per_second) in rates {
        history.observe(Measurement {
            at,
            bytes_per_second,
        });
    }
}

fn rates_text(history: &RateHistory) -> Vec<(u64, f64)> {
    history.iter().map(|m| (m.at, m.bytes_per_second)).collect()
}

fn pool_text(pool: &PoolWatch) -> Option<PoolText> {
    let (since, newest) = pool.looks()?;
    let incidents = pool.incidents().iter();
    Some(PoolText {
        since,
        newest,
        is_away: pool.is_away(),
        incidents: incidents.map(|one| (one.first, one.last)).collect(),
    })
}

/// Reads the file at `path`, applies `change`, and replaces the file in one step, under a lock.
pub(super) fn update(
    path: &Path,
    change: impl FnOnce(&mut Knowledge),
) -> Result<(), KnowledgeError> {
    let failed = |cause| KnowledgeError::Io {
        path: path.to_owned(),
        cause,
    };
    let locked = file_lock::lock_beside(path, LOCK_TIMEOUT);
    let _lock = locked.map_err(|cause| match cause.kind() {
        io::ErrorKind::ResourceBusy => KnowledgeError::Busy(path.to_owned()),
        _ => failed(cause),
    })?;
    let mut known = match Knowledge::load(path) {
        Ok(known) => known,
        // It may be whole, and say which versions there are.
        Err(KnowledgeError::Io { cause, .. }) if cause.kind() != io::ErrorKind::InvalidData => {
            return Err(failed(cause));
        }
        Err(_) => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".damaged");
            fs::rename(path, aside).map_err(failed)?;
            Knowledge::default()
        }
    };
    change(&mut known);
    file_lock::replace(path, &known.to_text()).map_err(failed)
}

fn malformed(path: &Path, what: String) -> KnowledgeError {
    KnowledgeError::Malformed {
        path: path.to_owned(),
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contact, Named, Notebook, Observation};
    use crate::core::pool_watch::Sight;
    use placement::joint::Watched;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use proptest::prelude::*;

    const HOST: HostId = HostId(OwnerId([3; 32]));

    #[test]
    fn observations_are_there_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/grid.json");
        let notebook = Notebook::at(path.clone());
        notebook.note(Observation::Rate(HOST, 5e7));
        notebook.note(Observation::Contact(HOST, Contact::Answered));
        let times = SaveTimes {
            seconds: 2.5,
            held_seconds: Some(0.5),
        };
        notebook.note(Observation::Save(JobTag([4; 32]), times));
        let seen = Sighting {
            version: Version::new(7).unwrap(),
            more: Some(SightingDetails {
                owner: OwnerId([2; 32]),
                job: "1234.0".parse().unwrap(),
                stamp: Stamp {
                    created: 900,
                    checkpoint: CheckpointId([6; 16]),
                },
                until: Some(5000),
            }),
        };
        notebook.note(Observation::Version(JobTag([4; 32]), seen.clone()));
        let all = [
            GoesOn::Anew,
            GoesOn::With(None),
            GoesOn::With(Version::new(1_800_000_000)),
        ];
        for (number, goes_on) in (5..).zip(all) {
            notebook.note(Observation::GoesOn(JobTag([number; 32]), goes_on));
        }
        let host = GridHost {
            name: "h1".into(),
            addr: Address::Ip(([10, 0, 0, 1], 7600).into()),
            id: HOST,
            site: Some("lab".into()),
            owner: None,
        };
        let there = Named {
            there: vec![host.clone()],
            ..Named::default()
        };
        let missed = Missed {
            host: GridHost {
                id: HostId(OwnerId([9; 32])),
                ..host.clone()
            },
            seen_at: 900,
            certified_until: Some(5000),
        };
        let gone = Named {
            silent: vec![missed.clone()],
            ..Named::default()
        };
        notebook.note(Observation::Roster(there));
        notebook.note(Observation::Roster(gone));
        let now = notebook.read(1000);
        notebook.write(1000);
        let later = Notebook::at(path.clone()).read(1000);
        assert_eq!(later, now);
        assert_eq!(later.save_times(JobTag([4; 32])), Some(times));
        assert_eq!(later.newest(JobTag([4; 32])), Some(&seen));
        for (number, goes_on) in (5..).zip(all) {
            assert_eq!(later.goes_on(JobTag([number; 32])), Some(goes_on));
        }
        let all: Vec<_> = later.missed(1000).collect();
        assert_eq!((&all[0].host, all[0].certified_until), (&host, None));
        assert_eq!(all[1..], [&missed]);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn incidents_are_kept_and_files_without_them_are_read() {
        let hour = 1_795_000_000 / 3600;
        let mut known = Knowledge::default();
        assert!(!known.to_text().contains("pool"));
        known.pool.look(Sight::Usual, (hour - 48) * 3600);
        known.pool.look(Sight::Incident, hour * 3600);
        let text = known.to_text();
        assert_eq!(Knowledge::parse(&text), Ok(known));
        let watched = |text: &str| Knowledge::parse(text).map(|k| k.watched(hour * 3600));
        let seen = watched(&text).unwrap();
        assert_eq!((seen.incidents, seen.days), (1, 2.0));
        assert_eq!(watched(r#"{"version":1}"#), Ok(Watched::default()));
        // Hours that can't be right are left out, and the rest is read.
        let damaged = text.replace(
            "\"incidents\":[",
            "\"incidents\":[[9,3],[0,18446744073709551615],",
        );
        assert_eq!(watched(&damaged).unwrap().incidents, 1);
    }

    #[test]
    fn several_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.json");
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                let notebook = Notebook::at(path.clone());
                scope.spawn(move || {
                    notebook.note(Observation::Rate(HostId(OwnerId([writer; 32])), 1e6));
                    notebook.write(7);
                });
            }
        });
        assert_eq!(Knowledge::load(&path).unwrap().hosts.len(), 8);
    }

    #[test]
    fn a_damaged_file_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.json");
        fs::write(&path, "{\"version\":1,\"hosts\":[{]").unwrap();
        assert!(Knowledge::load(&path).is_err());
        let notebook = Notebook::at(path.clone());
        assert_eq!(*notebook.read(0), Knowledge::default());
        notebook.note(Observation::Rate(HOST, 1e6));
        notebook.write(1);
        assert!(Knowledge::load(&path).unwrap().host(HOST).is_some());
        let aside = fs::read_to_string(dir.path().join("grid.json.damaged")).unwrap();
        assert!(aside.starts_with("{\"version\":1"));
        // What can't be read may be whole: a directory, for one.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        notebook.note(Observation::Rate(HOST, 1e6));
        notebook.write(1);
        assert!(path.is_dir());
    }

    #[test]
    fn the_directory_follows_the_environment() {
        let with = |set: &'static [(&str, &str)]| {
            default_dir(move |name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).into())
            })
        };
        assert_eq!(
            with(&[("CKPT_STATE_DIR", "/a"), ("HOME", "/h")]),
            Some("/a".into())
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "/x"), ("HOME", "/h")]),
            Some("/x/ckpt".into())
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "x"), ("HOME", "/h")]),
            Some("/h/.local/state/ckpt".into())
        );
        assert_eq!(with(&[]), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = Knowledge::parse(&text);
        }

        #[test]
        fn any_numbers_are_borne(
            good in any::<f64>(),
            at in any::<u64>(),
            rate in any::<f64>(),
            now in any::<u64>(),
        ) {
            let mut known = Knowledge::default();
            known.observe(&Observation::Rate(HOST, rate), at);
            known.observe(&Observation::Contact(HOST, Contact::Answered), at);
            known.hosts.get_mut(&HOST).unwrap().good = if good.is_finite() { good.abs() } else { 1.0 };
            let again = Knowledge::parse(&known.to_text()).unwrap();
            let trusted = again.host(HOST).unwrap().trusted(placement::Probability::ONE, now);
            prop_assert!(trusted.value() <= 1.0);
        }
    }
}
