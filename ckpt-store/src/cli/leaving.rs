//! `ckpt-store drain`, and the side of the daemon that serves it. Both communicate through a file in the
//! data directory.
//!
//! ```text
//! within SECONDS [stay]      the request; the daemon goes on if shards are left
//! left SHARDS [stays]        the answer; each line after it is a reason
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::refusal::Refusal;
use super::running;
use crate::repair::Drained;

/// The end of the first line of an answer, if the daemon goes on.
const STAYS: &str = " stays";

/// `drain` waits longer than the daemon's time limit by this margin.
const MARGIN: Duration = Duration::from_secs(30);

/// A drain that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) within: Duration,
    /// Whether the daemon goes on if shards are left.
    pub(super) stays: bool,
}

/// What `ckpt-store drain` has written into the file.
pub(super) fn requested(path: &Path) -> Option<Wish> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.strip_prefix("within ")?;
    let limit = text.strip_suffix(" stay");
    Some(Wish {
        within: Duration::from_secs(limit.unwrap_or(text).parse().ok()?),
        stays: limit.is_some(),
    })
}

/// Writes the result of a drain into the file, for `ckpt-store drain`.
pub(super) fn answer(path: &Path, drained: &Drained, stays: bool) {
    let mut text = format!("left {}{}", drained.left, if stays { STAYS } else { "" });
    for reason in &drained.reasons {
        text.push('\n');
        text.push_str(&reason.replace('\n', " "));
    }
    // Without this file, `ckpt-store drain` prints that the number of shards is unknown. It reads the file while the
    // daemon runs, so the text appears in one step.
    let new = path.with_extension("new");
    let _ = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
}

/// Has the daemon hand its shards over and end, and waits for that. With `force` it ends even if shards are left.
pub(super) fn drain(data: &Path, within: Duration, force: bool) -> Result<ExitCode> {
    let pid = running::running(data)?.context(Refusal::new(
        "no daemon runs on this data directory, so no shard can be handed over",
        "ckpt-store serve, then the same command again; or --data DIR",
    ))?;
    let request = data.join("drain");
    let stay = if force { "" } else { " stay" };
    fs::write(&request, format!("within {}{stay}", within.as_secs()))
        .with_context(|| request.display().to_string())?;
    let process = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("process id")?;
    rustix::process::kill_process(process, rustix::process::Signal::TERM)?;
    let until = Instant::now() + within + MARGIN;
    while running::running(data)?.is_some() {
        let said = fs::read_to_string(&request).unwrap_or_default();
        if said
            .lines()
            .next()
            .is_some_and(|line| line.ends_with(STAYS))
        {
            break;
        }
        if Instant::now() > until {
            bail!("the daemon does not end; see its log");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = fs::read_to_string(&request).unwrap_or_default();
    fs::remove_file(&request)?;
    let (sentence, ending) = ended(&said);
    writeln!(std::io::stdout(), "{sentence}")?;
    Ok(ending)
}

/// What `ckpt-store drain` prints for the daemon's answer, and its exit status.
fn ended(said: &str) -> (String, ExitCode) {
    let mut lines = said.lines();
    let left = lines.next().and_then(|line| line.strip_prefix("left "));
    let stays = left.is_some_and(|left| left.ends_with(STAYS));
    let left = left.map(|left| left.trim_end_matches(STAYS));
    let left = left.and_then(|left| left.parse::<usize>().ok());
    if left == Some(0) {
        let sentence = "all shards are on other hosts; the data directory can be deleted";
        return (sentence.to_owned(), ExitCode::SUCCESS);
    }
    let left = match left {
        None => "an unknown number of shards are".to_owned(),
        Some(1) => "1 shard is".to_owned(),
        Some(left) => format!("{left} shards are"),
    };
    let next = if stays {
        "the daemon goes on (--force ends it)"
    } else {
        "keep the data directory, and start the daemon again later"
    };
    let mut sentence = format!("{left} on no other host: {next}");
    let reasons: BTreeSet<&str> = lines.collect();
    for reason in reasons {
        sentence.push_str("\n  ");
        sentence.push_str(reason);
    }
    (sentence, ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_reasons_are_said() {
        assert!(ended("left 0").0.starts_with("all shards"));
        assert_eq!(
            ended("left 1\nfull\nfull").0,
            "1 shard is on no other host: keep the data directory, and start the daemon again later\n  full"
        );
        assert!(
            ended("left 2")
                .0
                .starts_with("2 shards are on no other host")
        );
        assert!(ended("within 3").0.starts_with("an unknown number"));
        assert_eq!(
            ended("left 2 stays\nfull").0,
            "2 shards are on no other host: the daemon goes on (--force ends it)\n  full"
        );
    }

    #[test]
    fn a_request_says_whether_the_daemon_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drain");
        let wish = |text: &str| {
            fs::write(&path, text).unwrap();
            requested(&path).map(|wish| (wish.within.as_secs(), wish.stays))
        };
        assert_eq!(wish("within 60"), Some((60, false)));
        assert_eq!(wish("within 60 stay"), Some((60, true)));
        assert_eq!(wish("left 2 stays"), None);
    }
}
