//! The settings of a call: grid file, key, and the variables for retries, leases and logs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use command_line::time;
use placement::Probability;
use protocol::grid::OwnerFiles;

use super::classad::parse_lines;
use super::environment::{self, Variables};
use ckpt_agent::agent::{PlacementWish, SaveOptions, Tenure, given_code};
use ckpt_agent::client::Settings;
use ckpt_agent::connection::load_grid;
use ckpt_agent::report::{ExitStatus, Failure};

/// The directory in which a site keeps grid files and keys for all jobs.
const SITE_DIR: &str = "/etc/ckpt";

/// Usual time for which a call is retried while hosts are too few or too busy. HTCondor puts a job on
/// hold as soon as a transfer fails, and ends a plug-in after 20 hours.
const RETRY_USUAL: Duration = Duration::from_secs(10 * 60);

/// Usual lease of a job's checkpoints after the last one. It has an end because HTCondor does not call
/// the clean-up plug-in for transfer plug-ins that users bring along.
const LEASE_USUAL: Duration = Duration::from_secs(30 * 86_400);

/// Usual number of versions to keep. HTCondor asks for the last checkpoint that it knows of. One more may
/// have been uploaded after it without HTCondor learning of it.
const KEEP_USUAL: u32 = 3;

/// Longest ad of a job, bytes.
const JOB_AD_BYTES_MAX: u64 = 16 << 20;

/// Where a call looks for its settings.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// The variables of the job, which have precedence over those of this process.
    job: Variables,
    process: fn(&str) -> Option<OsString>,
    /// The directory to which paths in the job's variables are relative.
    base: PathBuf,
    /// The job's input files. In its sandbox each of them has only the last part of its path.
    inputs: Vec<PathBuf>,
    site: PathBuf,
    /// Whether the call runs on the access point, where the job was submitted.
    is_at_home: bool,
}

/// What a call asks of a save or a restore.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    pub(super) retry: Duration,
    /// How a save is made.
    pub(super) options: SaveOptions,
}

impl Surroundings {
    /// For a transfer: HTCondor names the job's ad in a variable, and the working directory is the job's
    /// sandbox.
    pub(super) fn of_transfer() -> Result<Self, Failure> {
        let ad = variable_of_process("_CONDOR_JOB_AD").map(PathBuf::from);
        Self::new(ad.as_deref(), false)
    }

    /// For a clean-up: the job's ad is an argument, and paths are relative to the directory of the
    /// submission.
    pub(super) fn of_cleanup(job_ad: Option<&Path>) -> Result<Self, Failure> {
        Self::new(job_ad, true)
    }

    fn new(job_ad: Option<&Path>, is_at_home: bool) -> Result<Self, Failure> {
        let mut job = Variables::new();
        let mut iwd = None;
        let mut inputs = Vec::new();
        if let Some(path) = job_ad {
            let failed = |what: String| usage(format!("job ad {}: {what}", path.display()));
            let bytes = read(path, JOB_AD_BYTES_MAX).map_err(|cause| failed(cause.to_string()))?;
            let ad = parse_lines(&bytes).map_err(|cause| failed(cause.to_string()))?;
            job = environment::variables(&ad).map_err(|cause| failed(cause.to_owned()))?;
            let path = |text: &[u8]| PathBuf::from(OsString::from_vec(text.to_vec()));
            iwd = ad.text("Iwd").map(path);
            let names = ad.text("TransferInput").unwrap_or_default();
            let names = names.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
            inputs = names.filter(|name| !name.is_empty()).map(path).collect();
        }
        Ok(Self {
            job,
            process: variable_of_process,
            base: iwd.filter(|_| is_at_home).unwrap_or_else(|| ".".into()),
            inputs,
            site: SITE_DIR.into(),
            is_at_home,
        })
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        let of_job = self
            .job
            .get(name.as_bytes())
            .cloned()
            .map(OsString::from_vec);
        let value = of_job.or_else(|| (self.process)(name));
        value.filter(|value| !value.is_empty())
    }

    /// The path of a file that a variable names: as seen from here or, on the access point, the input
    /// file of that name which the sandbox gets.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = PathBuf::from(self.variable(name)?);
        let path = self.base.join(&value);
        if path.exists() {
            return Some(path);
        }
        let mut inputs = self.inputs.iter();
        let input = inputs.find(|input| input.file_name() == Some(value.as_os_str()));
        Some(input.map_or(path, |input| self.base.join(input)))
    }

    /// A credential that HTCondor has brought to the job.
    fn credential(&self, name: &str) -> Option<PathBuf> {
        let dir = PathBuf::from((self.process)("_CONDOR_CREDS")?);
        Some(dir.join(name)).filter(|path| path.exists())
    }

    fn of_site(&self, name: &str) -> Option<PathBuf> {
        Some(self.site.join(name)).filter(|path| path.exists())
    }

    /// The file of the log, if it does not go to the system's log. It is always directly in the sandbox.
    pub(super) fn log_file(&self) -> Option<PathBuf> {
        let name = self.variable("CKPT_LOG")?;
        Some(self.base.join(Path::new(&name).file_name()?))
    }

    fn grid_file(&self, grid: &str) -> Result<PathBuf, Failure> {
        let found = self.credential("ckpt_grid.use");
        let found = found.or_else(|| self.path("CKPT_GRID"));
        let found = found.or_else(|| self.of_site(&format!("{grid}.toml")));
        found.ok_or_else(|| {
            usage(format!("no grid file for ckpt://{grid}")).next(format!(
                "CKPT_GRID=FILE in the job's environment, or {}",
                self.site.join(format!("{grid}.toml")).display()
            ))
        })
    }

    fn key_file(&self, grid: &str) -> Option<PathBuf> {
        let found = self.credential("ckpt.use");
        let found = found.or_else(|| self.path("CKPT_KEY_FILE"));
        found.or_else(|| self.of_site(&format!("{grid}.key")))
    }

    /// Grid file and key for the grid of this name. On the access point the user's own key has precedence
    /// over a job key: hosts do not let a job key remove the newest versions, and they pass on only the
    /// notices of an owner.
    pub(super) fn settings(&self, grid: &str) -> Result<Settings, Failure> {
        let file = self.grid_file(grid)?;
        let found = load_grid(&file)?;
        if found.name != grid {
            let file = file.display();
            let is = &found.name;
            return Err(
                usage(format!("{file} is for grid {is:?}, not for {grid:?}"))
                    .next(format!("a destination that begins with ckpt://{is}/")),
            );
        }
        let mut settings = Settings::of_grid(file);
        let is_there = |owner: &OwnerFiles| self.is_at_home && owner.key.exists();
        let own = found.owner.as_ref().filter(|owner| is_there(owner));
        let own = own.map(|owner| owner.key.clone());
        let own = own.or_else(|| self.is_at_home.then(key_at_home).flatten());
        let key = own.or_else(|| self.key_file(grid));
        if key.is_none() && found.owner.is_none() {
            return Err(Failure::new(ExitStatus::Denied, "no key").next(format!(
                "CKPT_KEY_FILE=FILE in the job's environment, made by ckpt key for-job; or {}",
                self.site.join(format!("{grid}.key")).display()
            )));
        }
        if let Some(key) = key {
            settings = settings.key(key);
        }
        if let Some(certificate) = self.path("CKPT_CERT_FILE") {
            settings = settings.certificate(certificate);
        }
        Ok(settings)
    }

    /// What the variables ask for.
    pub(super) fn wishes(&self) -> Result<Wishes, Failure> {
        let redundancy = given_code(self.given("CKPT_DATA")?, self.given("CKPT_PARITY")?)
            .map_err(|cause| usage(format!("CKPT_DATA and CKPT_PARITY: {cause}")))?;
        let target = self.read("CKPT_TARGET", |text| {
            let number = text.parse().ok();
            let number = number.filter(|number| *number > 0.0 && *number < 1.0);
            let target = number.and_then(|number| Probability::new(number).ok());
            target.ok_or_else(|| format!("{text:?} is not a probability between 0 and 1"))
        })?;
        if target.is_some() && redundancy.is_some() {
            return Err(usage(
                "CKPT_TARGET together with CKPT_DATA or CKPT_PARITY".into(),
            ));
        }
        let tenure = self.read("CKPT_TTL", |text| match text {
            "none" => Ok(Tenure::Forever),
            text => time::parse_with_unit(text).map(Tenure::For),
        })?;
        let retry = self.read("CKPT_RETRY", |text| match text {
            "0" => Ok(Duration::ZERO),
            text => time::parse(text),
        })?;
        Ok(Wishes {
            retry: retry.unwrap_or(RETRY_USUAL),
            options: SaveOptions {
                tenure: Some(tenure.unwrap_or(Tenure::For(LEASE_USUAL))),
                keep: self.number("CKPT_KEEP", KEEP_USUAL)?,
                redundancy,
                placement: PlacementWish {
                    target,
                    ..PlacementWish::default()
                },
                ..SaveOptions::default()
            },
        })
    }

    fn number<N: std::str::FromStr>(&self, name: &str, usual: N) -> Result<N, Failure> {
        Ok(self.given(name)?.unwrap_or(usual))
    }

    fn given<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, Failure> {
        let wrong = |text: &str| format!("{text:?} is not a number in the allowed range");
        self.read(name, |text| text.parse().map_err(|_| wrong(text)))
    }

    fn read<V>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<V, String>,
    ) -> Result<Option<V>, Failure> {
        let Some(value) = self.variable(name) else {
            return Ok(None);
        };
        let value = parse(&value.to_string_lossy());
        value
            .map(Some)
            .map_err(|why| usage(format!("{name}: {why}")))
    }
}

/// The own key of the user under whom this process runs. Looks up the home directory, because `HOME` is
/// still that of root here.
fn key_at_home() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let entry = Command::new("getent")
        .args(["passwd", &user])
        .output()
        .ok()?;
    let home = home_in(&entry.stdout)?;
    let key = home.join(".config/ckpt/owner.key");
    key.exists().then_some(key)
}

/// The home directory in an entry of the password database.
fn home_in(entry: &[u8]) -> Option<PathBuf> {
    let home = entry.split(|&byte| byte == b':').nth(5)?;
    let home = PathBuf::from(OsString::from_vec(home.to_vec()));
    home.is_absolute().then_some(home)
}

fn variable_of_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

pub(super) fn usage(message: String) -> Failure {
    Failure::new(ExitStatus::Usage, message).next("ckpt_plugin --help")
}

/// Reads a file, unless it is longer than `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(std::io::Error::other(format!("longer than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use codec::Redundancy;

    use super::*;

    fn with(job: &[(&str, &str)], site: &Path) -> Surroundings {
        let owned =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        Surroundings {
            job: job.iter().map(owned).collect(),
            process: |name| (name == "CKPT_KEY_FILE").then(|| "/of/process".into()),
            base: "/base".into(),
            inputs: Vec::new(),
            site: site.into(),
            is_at_home: false,
        }
    }

    #[test]
    fn the_jobs_files_go_before_those_of_the_process_and_those_before_the_sites() {
        let site = tempfile::tempdir().unwrap();
        let site = site.path();
        let named = with(
            &[("CKPT_GRID", "g.toml"), ("CKPT_KEY_FILE", "job.key")],
            site,
        );
        assert_eq!(named.grid_file("lab").unwrap(), Path::new("/base/g.toml"));
        assert_eq!(named.key_file("lab"), Some("/base/job.key".into()));
        let bare = with(&[], site);
        assert_eq!(bare.key_file("lab"), Some("/of/process".into()));
        let failure = bare.grid_file("lab").unwrap_err();
        assert_eq!(failure.status, ExitStatus::Usage);
        assert!(failure.next.is_some_and(|next| next.contains("lab.toml")));
        fs::write(site.join("lab.toml"), "").unwrap();
        assert_eq!(bare.grid_file("lab").unwrap(), site.join("lab.toml"));
        assert!(bare.grid_file("other").is_err());
        let alone = Surroundings {
            process: |_| None,
            ..bare
        };
        assert_eq!(alone.key_file("lab"), None);
        fs::write(site.join("lab.key"), "").unwrap();
        assert_eq!(alone.key_file("lab"), Some(site.join("lab.key")));
    }

    #[test]
    fn the_home_of_a_user_is_the_sixth_field() {
        let home = home_in(b"ada:x:1000:1000:Ada, Ms,:/home/ada:/bin/sh\n");
        assert_eq!(home, Some("/home/ada".into()));
        assert_eq!(home_in(b""), None);
        assert_eq!(home_in(b"x:x:1:1:::\n"), None);
    }

    #[test]
    fn a_credential_that_was_brought_goes_before_all() {
        thread_local! {
            static CREDS: tempfile::TempDir = tempfile::tempdir().unwrap();
        }
        let creds = CREDS.with(|dir| dir.path().to_owned());
        let mut named = with(
            &[("CKPT_GRID", "g.toml"), ("CKPT_KEY_FILE", "job.key")],
            Path::new("/"),
        );
        named.process = |name| {
            let is_creds = name == "_CONDOR_CREDS";
            is_creds.then(|| CREDS.with(|dir| dir.path().into()))
        };
        assert_eq!(
            named.key_file("lab"),
            Some("/base/job.key".into()),
            "there is none"
        );
        fs::write(creds.join("ckpt.use"), "").unwrap();
        fs::write(creds.join("ckpt_grid.use"), "").unwrap();
        assert_eq!(named.key_file("lab"), Some(creds.join("ckpt.use")));
        assert_eq!(named.grid_file("lab").unwrap(), creds.join("ckpt_grid.use"));
    }

    #[test]
    fn wishes_are_read_and_wrong_ones_named() {
        let site = Path::new("/nowhere");
        let usual = with(&[("CKPT_TTL", "")], site).wishes().unwrap();
        assert_eq!(usual.retry, Duration::from_secs(600));
        assert_eq!(
            usual.options.tenure,
            Some(Tenure::For(Duration::from_secs(30 * 86_400)))
        );
        assert_eq!((usual.options.keep, usual.options.redundancy), (3, None));
        assert_eq!(usual.options.placement.target, None);
        let said = [
            ("CKPT_RETRY", "0"),
            ("CKPT_TTL", "none"),
            ("CKPT_KEEP", "9"),
            ("CKPT_DATA", "2"),
            ("CKPT_PARITY", "1"),
        ];
        let said = with(&said, site).wishes().unwrap();
        assert_eq!(
            (said.retry, said.options.tenure, said.options.keep),
            (Duration::ZERO, Some(Tenure::Forever), 9)
        );
        assert_eq!(said.options.redundancy, Redundancy::new(2, 1).ok());
        let one = with(&[("CKPT_PARITY", "1")], site).wishes().unwrap();
        assert_eq!(one.options.redundancy, Redundancy::new(3, 1).ok());
        let auto = with(&[("CKPT_TARGET", "0.99")], site).wishes().unwrap();
        assert_eq!(auto.options.placement.target, Probability::new(0.99).ok());
        let both = with(&[("CKPT_TARGET", "0.99"), ("CKPT_DATA", "2")], site).wishes();
        assert_eq!(both.unwrap_err().status, ExitStatus::Usage);
        for (name, value) in [
            ("CKPT_TARGET", "1"),
            ("CKPT_TARGET", "auto"),
            ("CKPT_RETRY", "soon"),
            ("CKPT_TTL", "30"),
            ("CKPT_KEEP", "-1"),
            ("CKPT_DATA", "0"),
            ("CKPT_PARITY", "300"),
        ] {
            let failure = with(&[(name, value)], site).wishes().unwrap_err();
            assert_eq!(failure.status, ExitStatus::Usage);
            assert!(failure.message.contains(name), "{failure}");
        }
    }

    #[test]
    fn a_job_ad_gives_variables_and_where_relative_paths_begin() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.ad");
        fs::write(
            &path,
            "Iwd = \"/home/ada\"\nEnvironment = \"CKPT_KEY_FILE=job.key\"\n",
        )
        .unwrap();
        let cleanup = Surroundings::of_cleanup(Some(&path)).unwrap();
        assert_eq!(cleanup.key_file("lab"), Some("/home/ada/job.key".into()));
        let ad = "Iwd = \"/home/ada\"\nEnvironment = \"CKPT_KEY_FILE=job.key\"\n\
                  TransferInput = \"job.py, keys/job.key,/x/y\"\n";
        fs::write(&path, ad).unwrap();
        let cleanup = Surroundings::of_cleanup(Some(&path)).unwrap();
        let key = cleanup.key_file("lab");
        assert_eq!(
            key,
            Some("/home/ada/keys/job.key".into()),
            "where the job's copy came from"
        );
        fs::write(&path, "Iwd").unwrap();
        let failure = Surroundings::of_cleanup(Some(&path)).unwrap_err();
        assert!(
            failure.message.contains("job.ad: byte 3: = follows"),
            "{failure}"
        );
        assert!(Surroundings::of_cleanup(Some(Path::new("/none"))).is_err());
    }
}
