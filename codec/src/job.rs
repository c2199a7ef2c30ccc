//! Names of jobs, and the jobs that a key may be for: one job, or all jobs below a prefix.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest job id in bytes.
pub const JOB_ID_BYTES_MAX: usize = 255;

/// Most components of a job id. Each takes 80 bytes in every manifest.
pub const JOB_COMPONENTS_MAX: usize = 16;

/// Longest escaped job id that is used as a file name as it is; longer ones are cut and end with a hash.
/// File systems allow 255 bytes, and programs add endings to the name.
const FILE_NAME_BYTES_MAX: usize = 200;

/// Characters that are written as `%` and two digits in file names.
const ESCAPED: &str = "/#[]+,";

/// The name of a job, to which checkpoints belong: 1 to 255 characters of `[A-Za-z0-9._@:/#[]+,-]`. `/`
/// separates up to 16 components, none of which is empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

/// Why a text is no job id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobIdError {
    /// The text has no characters, or too many.
    #[error("the job id has {0} characters, not 1 to {JOB_ID_BYTES_MAX}")]
    Length(usize),
    /// A character that is not allowed.
    #[error("the job id has the character {0:?}; allowed are A-Z a-z 0-9 . _ @ : - / # [ ] + ,")]
    Character(char),
    /// A component is not allowed.
    #[error("the job id has the component {0:?}: none may be empty, . or ..")]
    Component(String),
    /// There are too many components.
    #[error("the job id has {0} components, at most {JOB_COMPONENTS_MAX} are allowed")]
    Components(usize),
}

fn check(text: &str) -> Result<(), JobIdError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._@:-/#[]+,".contains(c);
    if let Some(c) = text.chars().find(|&c| !allowed(c)) {
        return Err(JobIdError::Character(c));
    }
    if text.is_empty() || text.len() > JOB_ID_BYTES_MAX {
        return Err(JobIdError::Length(text.len()));
    }
    let mut components = text.split('/');
    if let Some(bad) = components.find(|part| matches!(*part, "" | "." | "..")) {
        return Err(JobIdError::Component(bad.to_owned()));
    }
    match text.split('/').count() {
        0..=JOB_COMPONENTS_MAX => Ok(()),
        count => Err(JobIdError::Components(count)),
    }
}

impl JobId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts between slashes; at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// A file name for this job: one path component of at most 255 bytes, different for each job.
    /// Some characters are escaped, as `%2F` for `/`, and so is a `-` at the beginning.
    pub fn file_name(&self) -> String {
        use fmt::Write;
        let mut name = String::with_capacity(self.0.len());
        for (at, c) in self.0.char_indices() {
            // Programs would take a name that begins with `-` for an option.
            if ESCAPED.contains(c) || (at == 0 && c == '-') {
                let _ = write!(name, "%{:02X}", u32::from(c));
            } else {
                name.push(c);
            }
        }
        if name.len() > FILE_NAME_BYTES_MAX {
            name.truncate(FILE_NAME_BYTES_MAX - 34);
            let hash = blake3::hash(self.0.as_bytes());
            // No escaped name has `%h`, as `h` is no hexadecimal digit.
            name.push('%');
            name.push('h');
            name.push_str(&crate::hex::encode(&hash.as_bytes()[..16]));
        }
        name
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for JobId {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<Self, JobIdError> {
        check(&text)?;
        Ok(Self(text))
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The jobs that a key may be for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum JobScope {
    /// The job of exactly this name.
    Job(JobId),
    /// All jobs whose names begin with this one and a slash; not the job of this name itself.
    Below(JobId),
}

impl FromStr for JobScope {
    type Err = JobIdError;

    /// Reads a job id, or a job id with a slash after it, which stands for all jobs below.
    fn from_str(text: &str) -> Result<Self, JobIdError> {
        match text.strip_suffix('/') {
            Some(above) => {
                let above: JobId = above.parse()?;
                match above.components().count() {
                    JOB_COMPONENTS_MAX => Err(JobIdError::Components(JOB_COMPONENTS_MAX + 1)),
                    _ => Ok(Self::Below(above)),
                }
            }
            None => text.parse().map(Self::Job),
        }
    }
}

impl TryFrom<String> for JobScope {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<Self, JobIdError> {
        text.parse()
    }
}

impl From<JobScope> for String {
    fn from(scope: JobScope) -> Self {
        scope.to_string()
    }
}

impl fmt::Display for JobScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => write!(f, "{job}"),
            Self::Below(above) => write!(f, "{above}/"),
        }
    }
}

impl JobScope {
    /// The name of the job, or of the prefix.
    pub const fn name(&self) -> &JobId {
        match self {
            Self::Job(name) | Self::Below(name) => name,
        }
    }

    /// Whether `job` is one of these jobs.
    pub fn has(&self, job: &JobId) -> bool {
        match self {
            Self::Job(name) => name == job,
            Self::Below(above) => {
                let rest = job.as_str().strip_prefix(above.as_str());
                rest.is_some_and(|rest| rest.starts_with('/'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn job_ids_are_checked() {
        let parse = |text: &str| text.parse::<JobId>();
        for good in [
            "42",
            "user@host:1234.0_a-b",
            "slurm/a.b/42_[1-10]",
            "c++,#7",
            "...",
            &"x".repeat(255),
            &vec!["x"; 16].join("/"),
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        assert_eq!(parse(""), Err(JobIdError::Length(0)));
        assert_eq!(parse(&"x".repeat(256)), Err(JobIdError::Length(256)));
        assert_eq!(parse("a b"), Err(JobIdError::Character(' ')));
        assert_eq!(parse("a%b"), Err(JobIdError::Character('%')));
        for (text, bad) in [
            ("/", ""),
            ("/a", ""),
            ("a/", ""),
            ("a//b", ""),
            (".", "."),
            ("a/../b", ".."),
            ("..", ".."),
        ] {
            assert_eq!(
                parse(text),
                Err(JobIdError::Component(bad.into())),
                "{text}"
            );
        }
        let many = vec!["x"; 17].join("/");
        assert_eq!(parse(&many), Err(JobIdError::Components(17)));
    }

    #[test]
    fn a_slash_at_the_end_means_all_below() {
        let parse = |text: &str| text.parse::<JobScope>();
        let below = parse("a/b/").unwrap();
        assert_eq!(below.to_string(), "a/b/");
        for (job, is_in) in [
            ("a/b/c", true),
            ("a/b/c/d", true),
            ("a/b", false),
            ("a/bc", false),
        ] {
            assert_eq!(below.has(&job.parse().unwrap()), is_in, "{job}");
        }
        let one = parse("a/b").unwrap();
        assert!(one.has(&"a/b".parse().unwrap()) && !one.has(&"a/b/c".parse().unwrap()));
        assert!(parse("/").is_err() && parse("a//").is_err());
        assert!(parse(&format!("{}/", vec!["x"; 16].join("/"))).is_err());
    }

    #[test]
    fn file_names_of_old_job_ids_are_the_ids() {
        let name = |text: &str| text.parse::<JobId>().unwrap().file_name();
        assert_eq!(name("user@host:1234.0_a-b"), "user@host:1234.0_a-b");
        assert_eq!(name("a/b#[1]+,"), "a%2Fb%23%5B1%5D%2B%2C");
        assert_eq!(name("-j"), "%2Dj");
        let one = "/a".repeat(15);
        let two = "x".repeat(220);
        let long = format!("x{one}{two}");
        let other = format!("x{one}{two}y");
        assert!(name(&long).len() <= FILE_NAME_BYTES_MAX && name(&long) != name(&other));
    }

    proptest! {
        #[test]
        fn file_names_are_one_component_and_differ(
            a in "[a-z/#+.]{1,30}", b in "[a-z/#+.]{1,30}",
        ) {
            if let (Ok(a), Ok(b)) = (a.parse::<JobId>(), b.parse::<JobId>()) {
                let name = a.file_name();
                prop_assert!(!name.contains('/') && name != "." && name != "..");
                prop_assert_eq!(a == b, name == b.file_name());
            }
        }
    }
}
