//! Moves the files of a checkpoint to hosts and back. One call makes one version, or fails as a whole.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

use super::address::{Address, CheckpointAddress, NUMBER_LABEL};
use super::call::Direction;
use super::classad::{self, ClassAd, Written};
use super::log::Log;
use super::settings::{Surroundings, Wishes, usage};
use ckpt_agent::client::{
    Cancel, Client, Labels, NamedPath, Restore, Save, SaveInput, SaveOptions, Which,
};
use ckpt_agent::report::{ExitStatus, Failure};

/// Pause before the first retry, and the longest pause. Each pause is twice the one before.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The directory in the image that contains the files of a checkpoint. An image of one directory is
/// restored as a directory, however many files it has.
const IMAGE_DIR: &str = "checkpoint";

/// Prefix of the directory into which a checkpoint is restored, beside its files' places. HTCondor does
/// not take names with this prefix for output of the job.
const RESTORE_DIR_PREFIX: &str = ".ckpt_plugin.";

/// A file to move, as HTCondor names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) local: PathBuf,
    pub(super) url: Vec<u8>,
}

/// How the transfer of a file ended.
pub(super) struct TransferOutcome {
    pub(super) item: Item,
    /// The number of its bytes, or the kind of failure and its message.
    pub(super) ended: Result<u64, (ExitStatus, String)>,
    /// When the call began and ended, Unix seconds.
    pub(super) times: (u64, u64),
    /// Seconds until the files of the grid had been read and the hosts were known.
    pub(super) connecting_s: f64,
}

/// The files that the ads of an infile name.
pub(super) fn items(ads: &[ClassAd]) -> Result<Vec<Item>, Failure> {
    let item = |ad: &ClassAd| {
        let text = |name: &str| ad.text(name).map(<[u8]>::to_vec);
        let local = PathBuf::from(std::ffi::OsString::from_vec(text("LocalFileName")?));
        Some(Item {
            local,
            url: text("Url")?,
        })
    };
    let items: Option<Vec<Item>> = ads.iter().map(item).collect();
    items.ok_or_else(|| usage("an ad of the infile lacks Url or LocalFileName".into()))
}

/// One call of the transfer plug-in.
pub(super) struct Transfer<'a> {
    pub(super) surroundings: &'a Surroundings,
    pub(super) log: &'a mut Log,
    pub(super) cancel: Cancel,
    /// Time that it took to connect.
    pub(super) connecting: Duration,
}

impl Transfer<'_> {
    /// Saves all files as one version. Returns the number of bytes of each.
    pub(super) async fn upload(&mut self, items: &[Item]) -> Result<Vec<u64>, Failure> {
        let Some((checkpoint, named)) = one_checkpoint(items)? else {
            return Ok(Vec::new());
        };
        let wishes = self.surroundings.wishes()?;
        let CheckpointAddress { job, number, .. } = &checkpoint;
        let doing = format!("checkpoint {number} of job {job}");
        let labels = Labels::of_user(vec![(NUMBER_LABEL.to_owned(), number.to_string())]);
        let options = SaveOptions {
            labels: labels.map_err(|cause| usage(cause.to_string()))?,
            ..wishes.options.clone()
        };
        let save = Save::of(job, SaveInput::Named(named))
            .options(options)
            .cancel(self.cancel.clone());
        let report = self
            .again(&checkpoint, &wishes, &doing, async |client| {
                client.save(save.clone()).await
            })
            .await?;
        for note in report.warnings.iter().chain(&report.notes) {
            self.log.inform(&format!("{doing}: {note}"));
        }
        self.log.inform(&format!(
            "{doing}: {} files saved as version {}, {} bytes of {} stored, {:.2} s",
            items.len(),
            report.version,
            report.stored_bytes,
            report.image_bytes,
            report.seconds
        ));
        let bytes = items
            .iter()
            .map(|item| fs::metadata(&item.local).map_or(0, |file| file.len()));
        Ok(bytes.collect())
    }

    /// Restores each checkpoint of which a file is wanted as a whole, and moves the wanted files to their
    /// places. Returns for each item the number of its bytes, or its failure.
    pub(super) async fn download(
        &mut self,
        items: &[Item],
    ) -> Result<Vec<Result<u64, Failure>>, Failure> {
        let mut of_checkpoints: BTreeMap<CheckpointAddress, Vec<(usize, Vec<u8>)>> =
            BTreeMap::new();
        let mut ended: BTreeMap<usize, Result<u64, Failure>> = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            match Address::parse(&item.url) {
                Ok(Address { checkpoint, file }) => {
                    of_checkpoints
                        .entry(checkpoint)
                        .or_default()
                        .push((at, file));
                }
                Err(cause) => {
                    ended.insert(at, Err(usage(cause.to_string())));
                }
            }
        }
        let wishes = self.surroundings.wishes()?;
        for (checkpoint, files) in of_checkpoints {
            let first = files.first().and_then(|(at, _)| items.get(*at));
            // In the nearest directory that exists, so that the files only have to be renamed later.
            let mut above = first
                .into_iter()
                .flat_map(|item| item.local.ancestors().skip(1));
            let beside = above.find(|path| path.is_dir());
            let beside = beside.unwrap_or(Path::new("."));
            let restored = self.restore(&checkpoint, &wishes, beside).await;
            for (at, file) in files {
                let moved = match (&restored, items.get(at)) {
                    (Ok(dir), Some(item)) => {
                        let restored = dir.path().join(IMAGE_DIR).join(OsStr::from_bytes(&file));
                        moved(&restored, &item.local)
                    }
                    (Err(failure), _) => Err(copy_of(failure)),
                    (Ok(_), None) => continue,
                };
                ended.insert(at, moved);
            }
        }
        Ok(ended.into_values().collect())
    }

    async fn restore(
        &mut self,
        checkpoint: &CheckpointAddress,
        wishes: &Wishes,
        beside: &Path,
    ) -> Result<tempfile::TempDir, Failure> {
        let CheckpointAddress { job, number, .. } = checkpoint;
        let doing = format!("checkpoint {number} of job {job}");
        let dir = tempfile::Builder::new()
            .prefix(RESTORE_DIR_PREFIX)
            .tempdir_in(beside);
        let dir =
            dir.map_err(|cause| local(&format!("a directory in {}", beside.display()), &cause))?;
        let restore = Restore::new(job, Which::Newest, dir.path().join(IMAGE_DIR))
            .label(NUMBER_LABEL, number.to_string())
            .cancel(self.cancel.clone());
        let report = self
            .again(checkpoint, wishes, &doing, async |client| {
                client.restore(restore.clone()).await
            })
            .await?;
        for warning in &report.warnings {
            self.log.inform(&format!("{doing}: {warning}"));
        }
        self.log.inform(&format!(
            "{doing}: {} bytes restored, {:.2} s",
            report.image_bytes, report.seconds
        ));
        Ok(dir)
    }

    /// Acts on a new connection. Repeats this while hosts are too few or too busy, for as long as
    /// `wishes` allow.
    async fn again<R>(
        &mut self,
        checkpoint: &CheckpointAddress,
        wishes: &Wishes,
        doing: &str,
        act: impl AsyncFn(&Client) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let until = Instant::now() + wishes.retry;
        let mut pause = RETRY_PAUSE;
        loop {
            let begun = Instant::now();
            let settings = self.surroundings.settings(&checkpoint.grid)?;
            let failure = match Client::connect(&settings).await {
                Ok(client) => {
                    self.connecting = begun.elapsed();
                    let done = act(&client).await;
                    client.close().await;
                    match done {
                        Ok(done) => return Ok(done),
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            let is_passing = matches!(
                failure.status,
                ExitStatus::TooFewHosts | ExitStatus::Deadline
            );
            let now = Instant::now();
            if !is_passing || now >= until {
                return Err(failure);
            }
            let wait = pause.min(until - now);
            self.log.warn(&format!(
                "{doing}: {}; trying again in {:.0} s, for {:.0} s more",
                said(&failure),
                wait.as_secs_f64(),
                (until - now).as_secs_f64()
            ));
            tokio::select! {
                () = self.cancel.cancelled() => {
                    return Err(Failure::new(ExitStatus::Interrupted, format!("{doing}: interrupted")));
                }
                () = tokio::time::sleep(wait) => {}
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }
}

/// The one checkpoint to which all files belong, and the files with their names in the image.
fn one_checkpoint(items: &[Item]) -> Result<Option<(CheckpointAddress, Vec<NamedPath>)>, Failure> {
    let mut one: Option<CheckpointAddress> = None;
    let mut named = Vec::new();
    for item in items {
        let address = Address::parse(&item.url).map_err(|cause| usage(cause.to_string()))?;
        let Address { checkpoint, file } = address;
        match &one {
            Some(one) if *one != checkpoint => {
                let url = String::from_utf8_lossy(&item.url);
                let job = &one.job;
                let number = one.number;
                return Err(usage(format!(
                    "{url} is not of checkpoint {number} of job {job}, unlike the others of this call"
                )));
            }
            _ => one = Some(checkpoint),
        }
        // The job may have made this file a link to another one.
        let is_link = item.local.is_symlink();
        let path = if is_link {
            fs::canonicalize(&item.local)
        } else {
            Ok(item.local.clone())
        };
        let path = path.map_err(|cause| local(&item.local.display().to_string(), &cause))?;
        let name = [IMAGE_DIR.as_bytes(), b"/", &file].concat();
        let path = NamedPath::renamed(path, OsStr::from_bytes(&name));
        named.push(path.map_err(|cause| usage(cause.to_string()))?);
    }
    Ok(one.map(|one| (one, named)))
}

/// Moves a restored file to its place. Returns the number of its bytes.
fn moved(from: &Path, to: &Path) -> Result<u64, Failure> {
    let failed = |cause: &io::Error| local(&to.display().to_string(), cause);
    let bytes = match fs::symlink_metadata(from) {
        Ok(file) => file.len(),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let message = format!("the checkpoint has no file for {}", to.display());
            return Err(Failure::new(ExitStatus::NotFound, message)
                .next("a name from transfer_checkpoint_files of the job"));
        }
        Err(cause) => return Err(failed(&cause)),
    };
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(|cause| failed(&cause))?;
    }
    match fs::rename(from, to) {
        Err(cause) if cause.kind() == io::ErrorKind::CrossesDevices => {
            fs::copy(from, to)
                .map(|_| ())
                .map_err(|cause| failed(&cause))?;
        }
        done => done.map_err(|cause| failed(&cause))?,
    }
    Ok(bytes)
}

fn local(what: &str, cause: &io::Error) -> Failure {
    Failure::local(what, cause)
}

/// A copy of the failure for another file.
fn copy_of(failure: &Failure) -> Failure {
    Failure::new(failure.status, said(failure))
}

/// A failure in one line: message, part of each host, and what to try.
pub(super) fn said(failure: &Failure) -> String {
    let mut text = failure.message.clone();
    for note in &failure.hosts {
        text.push_str(&format!("; {}: {}", note.host, note.what));
    }
    if let Some(next) = &failure.next {
        text.push_str(&format!(" (try: {next})"));
    }
    text
}

/// The ad with which the plug-in reports the result for a file.
pub(super) fn answer(outcome: &TransferOutcome, direction: Direction) -> String {
    let text = |text: &str| Written::Text(text.as_bytes().to_vec());
    let number = |number: u64| Written::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let TransferOutcome {
        item, ended, times, ..
    } = outcome;
    let bytes = *ended.as_ref().unwrap_or(&0);
    let mut ad = vec![
        ("TransferSuccess", Written::Boolean(ended.is_ok())),
        ("TransferProtocol", text("ckpt")),
        ("TransferType", text(direction.name())),
        (
            "TransferFileName",
            Written::Text(item.local.as_os_str().as_bytes().to_vec()),
        ),
        ("TransferUrl", Written::Text(item.url.clone())),
        ("TransferFileBytes", number(bytes)),
        ("TransferTotalBytes", number(bytes)),
        ("TransferStartTime", number(times.0)),
        ("TransferEndTime", number(times.1)),
        ("ConnectionTimeSeconds", Written::Real(outcome.connecting_s)),
    ];
    if let Err((status, message)) = ended {
        ad.push(("TransferError", text(message)));
        ad.push((
            "TransferErrorData",
            Written::List(error_data(*status, message, &item.url)),
        ));
    }
    classad::ad(&ad)
}

/// Which of HTCondor's kinds of failed transfers a failure is; `None` if it is none of them.
fn failure_type(status: ExitStatus, message: &str) -> Option<&'static str> {
    let is = |errno: Errno| message.contains(&format!("(os error {})", errno.raw_os_error()));
    match status {
        // The second is what a restore says that has looked at the free space before it began.
        ExitStatus::LocalIo if is(Errno::NOSPC) || message.contains(" bytes needed, ") => {
            Some("NoSpace")
        }
        ExitStatus::LocalIo if is(Errno::DQUOT) => Some("Quota"),
        ExitStatus::Deadline => Some("TimedOut"),
        _ => None,
    }
}

/// The kind of failure, in the terms of version 4 of HTCondor's transfer protocol.
fn error_data(status: ExitStatus, message: &str, url: &[u8]) -> Vec<(&'static str, Written)> {
    let text = |text: &str| Written::Text(text.as_bytes().to_vec());
    let server = url.strip_prefix(b"ckpt://").unwrap_or_default();
    let server = server
        .split(|&byte| byte == b'/')
        .next()
        .unwrap_or_default();
    let failed = ("FailedServer", Written::Text(server.to_vec()));
    let mut data = match status {
        ExitStatus::Usage => vec![
            ("ErrorType", text("Parameter")),
            ("PluginVersion", text(env!("CARGO_PKG_VERSION"))),
            ("PluginLaunched", Written::Boolean(true)),
        ],
        ExitStatus::TooFewHosts => vec![("ErrorType", text("Contact")), failed],
        ExitStatus::Denied => vec![
            ("ErrorType", text("Authorization")),
            failed,
            ("FailureType", text("Authorization")),
            ("ShouldRefresh", Written::Boolean(false)),
        ],
        ExitStatus::NotFound => vec![("ErrorType", text("Specification")), failed],
        status => {
            let mut data = vec![("ErrorType", text("Transfer")), failed];
            let kind = failure_type(status, message).map(|kind| ("FailureType", text(kind)));
            data.extend(kind);
            data
        }
    };
    data.push(("ErrorCode", Written::Integer(i64::from(status as u8))));
    data.push(("ErrorString", text(message)));
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classad::{Value, parse_ads};

    fn item(local: &str, url: &str) -> Item {
        Item {
            local: local.into(),
            url: url.as_bytes().to_vec(),
        }
    }

    #[test]
    fn files_of_one_call_are_of_one_checkpoint() {
        let one = item("/s/a", "ckpt://lab/p/m_1.0_7/0002/a");
        let two = item("/s/d/b", "ckpt://lab/p/m_1.0_7/0002/./d/b");
        let (checkpoint, named) = one_checkpoint(&[one.clone(), two]).unwrap().unwrap();
        assert_eq!(
            (checkpoint.job.as_str(), checkpoint.number),
            ("p/m_1.0_7", 2)
        );
        assert_eq!(
            named[1],
            NamedPath::renamed("/s/d/b", "checkpoint/d/b".as_ref()).unwrap()
        );
        for other in [
            "lab/p/m_1.0_7/0003/b",
            "lab/p/m_2.0_7/0002/b",
            "lob/p/m_1.0_7/0002/b",
        ] {
            let other = item("/s/b", &format!("ckpt://{other}"));
            let failure = one_checkpoint(&[one.clone(), other]).unwrap_err();
            assert_eq!(failure.status, ExitStatus::Usage);
        }
        assert_eq!(one_checkpoint(&[]).unwrap(), None);
    }

    #[test]
    fn only_a_full_disk_is_reported_as_one() {
        for (message, kind) in [
            (
                "/s/a: No space left on device (os error 28)",
                Some("NoSpace"),
            ),
            ("\"/s/a\": 5000 bytes needed, 12 free", Some("NoSpace")),
            ("/s/a: Disk quota exceeded (os error 122)", Some("Quota")),
            ("/s/a: Permission denied (os error 13)", None),
        ] {
            assert_eq!(
                failure_type(ExitStatus::LocalIo, message),
                kind,
                "{message}"
            );
        }
        assert_eq!(failure_type(ExitStatus::Deadline, ""), Some("TimedOut"));
        assert_eq!(failure_type(ExitStatus::Damaged, ""), None);
    }

    #[test]
    fn each_failure_has_its_kind() {
        for (status, kind) in [
            (ExitStatus::Usage, "Parameter"),
            (ExitStatus::TooFewHosts, "Contact"),
            (ExitStatus::Denied, "Authorization"),
            (ExitStatus::NotFound, "Specification"),
            (ExitStatus::Damaged, "Transfer"),
        ] {
            let outcome = TransferOutcome {
                item: item("/s/\"a", "ckpt://lab/x"),
                ended: Err((status, "too bad".into())),
                times: (1, 2),
                connecting_s: 0.25,
            };
            let answer = answer(&outcome, Direction::Upload);
            assert!(
                answer.contains(&format!("ErrorType = \"{kind}\"")),
                "{answer}"
            );
            let ad = &parse_ads(answer.as_bytes()).unwrap()[0];
            assert_eq!(ad.get("TransferSuccess"), Some(&Value::Boolean(false)));
            assert_eq!(ad.text("TransferError"), Some(&b"too bad"[..]));
            assert_eq!(ad.text("TransferFileName"), Some(&b"/s/\"a"[..]));
            assert!(
                answer.contains("ConnectionTimeSeconds = 0.250000;"),
                "{answer}"
            );
        }
    }

    #[test]
    fn a_restored_file_goes_to_its_place_with_the_directories_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("a/b/to");
        fs::write(&from, "state").unwrap();
        assert_eq!(moved(&from, &to).unwrap(), 5);
        assert_eq!(fs::read(&to).unwrap(), b"state");
        let failure = moved(&from, &to).unwrap_err();
        assert_eq!(failure.status, ExitStatus::NotFound);
    }
}
