//! Which job a command is for: `--job JOB`, the job by its position, or the variable `CKPT_JOB`.
//!
//! A command that can remove checkpoints, or for which a job is only a filter, does not look at the variable: it would
//! act on a job, or on fewer jobs, than the command line says.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use ckpt_agent::report::{ExitStatus, Failure};
use clap::Args;
use codec::{JobId, JobScope};

use super::key::ScopeArgs;
use super::options::usage;
use super::{Cat, HostsArgs, Save};
use crate::commands::names;

/// Variable with the name of the job, for commands that name none.
pub(crate) const CKPT_JOB: &str = "CKPT_JOB";

/// The option that names a job.
const JOB: &str = "--job";

/// What a save can be of.
const ONE_KIND: &str = "ckpt save JOB PATH..., or ckpt save JOB -- CMD";

/// What a user can type if no job is named.
const NAME_A_JOB: &str = "--job JOB";

/// The job of a command that is for one job. The environment may name it.
#[derive(Clone, Debug, Args)]
pub struct AnyJob {
    /// The job; also by position [default: the variable CKPT_JOB].
    #[arg(long, add = names::jobs())]
    job: Option<JobId>,
    /// The job, as with --job.
    #[arg(value_name = "JOB", add = names::jobs())]
    place: Option<JobId>,
}

/// The job of a command for which only the command line may name it.
#[derive(Clone, Debug, Args)]
pub struct TypedJob {
    /// The job; also by position.
    #[arg(long, add = names::jobs())]
    job: Option<JobId>,
    /// The job, as with --job.
    #[arg(value_name = "JOB", add = names::jobs())]
    place: Option<JobId>,
}

impl AnyJob {
    /// The job.
    ///
    /// # Errors
    /// When nothing names it, or two things name different jobs.
    pub fn named(&self) -> Result<JobId, Failure> {
        self.known()?.ok_or_else(nothing_named)
    }

    /// The job, if the command line or the environment names one.
    ///
    /// # Errors
    /// When two things name different jobs.
    pub fn known(&self) -> Result<Option<JobId>, Failure> {
        match self.typed()? {
            Some(job) => Ok(Some(job)),
            None => of_environment(),
        }
    }

    /// The job, if the command line names one.
    ///
    /// # Errors
    /// When it names two different ones.
    pub fn typed(&self) -> Result<Option<JobId>, Failure> {
        one(JOB, self.job.as_ref(), self.place.as_ref())
    }
}

impl TypedJob {
    /// The job, if the command line names one.
    ///
    /// # Errors
    /// When it names two different ones.
    pub fn typed(&self) -> Result<Option<JobId>, Failure> {
        one(JOB, self.job.as_ref(), self.place.as_ref())
    }

    /// The job.
    ///
    /// # Errors
    /// When the command line names none, or two different ones.
    pub fn named(&self) -> Result<JobId, Failure> {
        self.typed()?
            .ok_or_else(|| Failure::new(ExitStatus::Usage, "no job is named").next(NAME_A_JOB))
    }
}

fn nothing_named() -> Failure {
    usage("no job is named".to_owned()).next(format!("{NAME_A_JOB}, or {CKPT_JOB}=JOB"))
}

/// The job that the environment names. An empty variable counts as not set.
///
/// # Errors
/// When the value is no name of a job.
pub fn of_environment() -> Result<Option<JobId>, Failure> {
    let Some(value) = std::env::var_os(CKPT_JOB).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let text = value.to_string_lossy();
    let job = text.parse();
    job.map(Some).map_err(|cause| {
        usage(format!("{CKPT_JOB}={text}: {cause}"))
            .next(format!("{NAME_A_JOB}, or {CKPT_JOB}=JOB"))
    })
}

/// The one job, or the one scope of jobs, that the option `name` and the position name.
///
/// # Errors
/// When they name two different ones.
pub(super) fn one<T: Clone + PartialEq + Display>(
    name: &str,
    by_option: Option<&T>,
    by_place: Option<&T>,
) -> Result<Option<T>, Failure> {
    match (by_option, by_place) {
        (Some(option), Some(place)) if option != place => Err(usage(format!(
            "two jobs are named: {option} by {name}, {place} by position"
        ))
        .next("name one of them")),
        (Some(job), _) | (None, Some(job)) => Ok(Some(job.clone())),
        (None, None) => Ok(None),
    }
}

/// A word as the name of a job. `-` is standard input.
fn as_job(word: &Path) -> Option<JobId> {
    let text = word.to_str().filter(|text| *text != "-")?;
    text.parse().ok()
}

impl ScopeArgs {
    /// The job, or the prefix of jobs.
    ///
    /// # Errors
    /// When nothing names it, or two things name different ones.
    pub fn named(&self) -> Result<JobScope, Failure> {
        let named = one(JOB, self.job.as_ref(), self.place.as_ref())?;
        named.ok_or_else(|| usage("no job is named".to_owned()).next(NAME_A_JOB))
    }
}

impl HostsArgs {
    /// The job for which hosts are chosen, if one is named.
    ///
    /// # Errors
    /// When two different ones are named.
    pub fn chosen_for(&self) -> Result<Option<JobId>, Failure> {
        one("--for-job", self.for_job.as_ref(), self.place.as_ref())
    }
}

impl Save {
    /// The job, and the paths that are saved.
    ///
    /// The first word is the job if neither `--job` nor the environment names it, or if a command follows, beside which
    /// there are no paths. A word that is a file here is never taken for a job: its user may have forgotten the job.
    ///
    /// # Errors
    /// When the words can be read in two ways, or name no job.
    pub fn job_and_paths(&self) -> Result<(JobId, &[PathBuf]), Failure> {
        let exists = |word: &Path| word.symlink_metadata().is_ok();
        self.split(of_environment()?, exists)
    }

    fn split(
        &self,
        environment: Option<JobId>,
        exists: impl Fn(&Path) -> bool,
    ) -> Result<(JobId, &[PathBuf]), Failure> {
        let words = self.paths.as_slice();
        let has_command = !self.command.is_empty();
        let Some((first, rest)) = words.split_first() else {
            let job = self.job.clone().or(environment);
            return job.map(|job| (job, words)).ok_or_else(nothing_named);
        };
        if has_command && !rest.is_empty() {
            return Err(usage(
                "paths and the output of a command can't be saved together".to_owned(),
            )
            .next(ONE_KIND));
        }
        // What the first word is for if it is a job.
        let place = as_job(first).filter(|_| has_command || !rest.is_empty());
        let place = place.filter(|_| !exists(first));
        let known = self.job.clone().or(environment);
        match (known, place) {
            // Beside a command, the word can only be a job, and the command line goes before the environment.
            (Some(_), Some(place)) if has_command && self.job.is_none() => Ok((place, rest)),
            (Some(known), Some(place)) if known == place => Ok((known, rest)),
            (Some(known), Some(place)) => {
                let by = if self.job.is_some() {
                    "--job"
                } else {
                    CKPT_JOB
                };
                Err(usage(format!(
                    "{place} is no file here, and by {by} the job is {known}"
                ))
                .next("a path that exists, or one name of a job"))
            }
            (Some(_), None) if has_command => Err(usage(format!(
                "{}: paths and the output of a command can't be saved together",
                first.display()
            ))
            .next(ONE_KIND)),
            (Some(known), None) => Ok((known, words)),
            (None, Some(place)) => Ok((place, rest)),
            (None, None) if rest.is_empty() && !has_command => {
                let next = format!("ckpt save JOB {}", first.display());
                Err(usage("no job is named".to_owned()).next(next))
            }
            (None, None) => Err(usage(format!(
                "no job is named: {} is {}",
                first.display(),
                if exists(first) {
                    "a file here"
                } else {
                    "no name of a job"
                }
            ))
            .next(NAME_A_JOB)),
        }
    }
}

impl Cat {
    /// The job, and the file of the checkpoint, if one is named.
    ///
    /// One word is the file if `--job` or the environment names the job, else it is the job.
    ///
    /// # Errors
    /// When no job is named, or two different ones.
    pub fn job_and_path(&self) -> Result<(JobId, Option<OsString>), Failure> {
        self.split(of_environment()?)
    }

    fn split(&self, environment: Option<JobId>) -> Result<(JobId, Option<OsString>), Failure> {
        let known = self.job.clone().or(environment);
        match self.words.as_slice() {
            [] => Ok((known.ok_or_else(nothing_named)?, None)),
            [path] if known.is_some() => Ok((known.ok_or_else(nothing_named)?, Some(path.clone()))),
            [word, rest @ ..] => {
                let place = as_job(Path::new(word)).ok_or_else(|| {
                    usage(format!("{} is no name of a job", Path::new(word).display()))
                        .next(NAME_A_JOB)
                })?;
                let job = one(JOB, self.job.as_ref(), Some(&place))?.unwrap_or(place);
                Ok((job, rest.first().cloned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::args::{Cli, Command};

    fn command(args: &[&str]) -> Command {
        let args = [&["ckpt"], args].concat();
        Cli::try_parse_from(args).unwrap().command
    }

    fn job(name: &str) -> Option<JobId> {
        (!name.is_empty()).then(|| name.parse().unwrap())
    }

    /// The job and the paths of a save, or what is wrong.
    fn saved(environment: &str, args: &[&str]) -> Result<(String, Vec<String>), String> {
        let Command::Save(save) = command(&[&["save"], args].concat()) else {
            panic!("no save");
        };
        // Files that are there.
        let exists = |path: &Path| ["image", "7", "b"].iter().any(|one| path == Path::new(one));
        let split = save.split(job(environment), exists);
        let split = split.map_err(|failure| failure.to_string());
        split.map(|(job, paths)| {
            let paths = paths.iter().map(|path| path.display().to_string());
            (job.to_string(), paths.collect())
        })
    }

    fn is(job: &str, paths: &[&str]) -> Result<(String, Vec<String>), String> {
        let paths = paths.iter().map(|path| (*path).to_owned());
        Ok((job.to_owned(), paths.collect()))
    }

    #[test]
    fn a_save_takes_its_job_by_position_only_if_nothing_else_names_it() {
        assert_eq!(saved("", &["42", "image"]), is("42", &["image"]));
        assert_eq!(saved("", &["42", "image", "b"]), is("42", &["image", "b"]));
        assert_eq!(saved("", &["42", "-"]), is("42", &["-"]));
        assert_eq!(saved("", &["42", "--", "tar"]), is("42", &[]));
        assert_eq!(saved("", &["--job", "42", "image"]), is("42", &["image"]));
        assert_eq!(saved("", &["image", "--job", "42"]), is("42", &["image"]));
        let both = ["--job", "42", "image", "b"];
        assert_eq!(saved("", &both), is("42", &["image", "b"]));
        assert_eq!(saved("42", &["image"]), is("42", &["image"]));
        assert_eq!(saved("42", &["image", "b"]), is("42", &["image", "b"]));
        assert_eq!(saved("42", &["--", "tar"]), is("42", &[]));
        assert_eq!(saved("41", &["42", "--", "tar"]), is("42", &[]));
        assert_eq!(saved("41", &["--job", "42", "image"]), is("42", &["image"]));
        assert_eq!(saved("", &["--job", "42", "42", "b"]), is("42", &["b"]));
    }

    #[test]
    fn a_save_whose_words_can_be_read_in_two_ways_is_refused() {
        let refused = |environment: &str, args: &[&str], why: &str| {
            let failed = saved(environment, args).unwrap_err();
            assert!(failed.contains(why), "{args:?}: {failed}");
        };
        // The job may have been forgotten.
        refused("", &["image"], "no job is named");
        refused("", &["image", "b"], "a file here");
        refused("", &["7", "image"], "a file here");
        refused("", &["image", "--", "tar"], "a file here");
        refused("", &["-"], "no job is named");
        refused("", &["-", "b"], "no job is named");
        refused("", &["a=b", "b"], "no name of a job");
        // Two jobs.
        refused(
            "",
            &["--job", "42", "43", "image"],
            "by --job the job is 42",
        );
        refused("42", &["43", "image"], "by CKPT_JOB the job is 42");
        refused("", &["--job", "42", "43", "--", "tar"], "by --job");
        refused("", &["--job", "42", "image", "--", "tar"], "together");
        refused("", &["42", "image", "--", "tar"], "together");
    }

    #[test]
    fn a_job_by_position_and_another_by_option_are_refused() {
        let restore = |args: &[&str]| match command(&[&["restore"], args].concat()) {
            Command::Restore(restore) => restore.job.named().map_err(|cause| cause.to_string()),
            _ => panic!("no restore"),
        };
        assert_eq!(restore(&["42"]), Ok(job("42").unwrap()));
        assert_eq!(restore(&["--job", "42"]), Ok(job("42").unwrap()));
        assert_eq!(restore(&["42", "--job", "42"]), Ok(job("42").unwrap()));
        let refused = restore(&["42", "--job", "43"]).unwrap_err();
        assert!(refused.contains("two jobs are named"), "{refused}");
        let Command::Forget(forget) = command(&["forget", "42", "--all"]) else {
            panic!("no forget");
        };
        assert_eq!(forget.job.named().ok(), job("42"));
        assert!(Cli::try_parse_from(["ckpt", "forget", "42", "43", "--all"]).is_err());
        assert!(Cli::try_parse_from(["ckpt", "gc", "42"]).is_err());
        assert!(Cli::try_parse_from(["ckpt", "list", "42", "--prefix", "4"]).is_err());
    }

    #[test]
    fn one_word_of_cat_is_the_file_if_the_job_is_named() {
        let cat = |environment: &str, args: &[&str]| {
            let Command::Cat(cat) = command(&[&["cat"], args].concat()) else {
                panic!("no cat");
            };
            let (job, path) = cat.split(job(environment)).ok()?;
            Some((
                job.to_string(),
                path.map(|path| path.into_string().unwrap()),
            ))
        };
        let is = |job: &str, path: Option<&str>| Some((job.to_owned(), path.map(str::to_owned)));
        assert_eq!(cat("", &["42"]), is("42", None));
        assert_eq!(cat("", &["42", "log"]), is("42", Some("log")));
        assert_eq!(cat("", &["--job", "42", "log"]), is("42", Some("log")));
        assert_eq!(cat("42", &["log"]), is("42", Some("log")));
        assert_eq!(cat("42", &["43", "log"]), is("43", Some("log")));
        assert_eq!(
            cat("", &["--job", "42", "42", "log"]),
            is("42", Some("log"))
        );
        assert_eq!(cat("", &["--job", "42", "43", "log"]), None);
        assert_eq!(cat("", &[]), None);
        assert_eq!(cat("", &["./log"]), None);
    }

    #[test]
    fn a_watch_takes_the_directory_last() {
        let watch = |args: &[&str]| match command(&[&["watch"], args].concat()) {
            Command::Watch(watch) => (watch.job.named().ok(), watch.dir),
            _ => panic!("no watch"),
        };
        let dir = PathBuf::from("out");
        assert_eq!(watch(&["42", "out"]), (job("42"), dir.clone()));
        assert_eq!(watch(&["--job", "42", "out"]), (job("42"), dir));
    }
}
