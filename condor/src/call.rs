//! The arguments with which HTCondor calls the two plug-ins.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A call of the transfer plug-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PluginCall {
    /// Print what the plug-in can do.
    Capabilities,
    /// Print how to use it.
    Help,
    /// Move the files that the infile lists, and write the results to the outfile.
    Transfer {
        infile: PathBuf,
        outfile: PathBuf,
        direction: Direction,
    },
}

/// Which way files are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the job's sandbox to the grid.
    Upload,
    /// From the grid to the job's sandbox.
    Download,
}

impl Direction {
    /// The name in answers to HTCondor.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
        }
    }
}

/// A call of the clean-up plug-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CleanupCall {
    /// Print how to use it.
    Help,
    /// Remove the checkpoint of this file.
    Delete {
        /// Address of the checkpoint.
        from: Vec<u8>,
        /// Path of the file in the checkpoint.
        file: Vec<u8>,
        job_ad: Option<PathBuf>,
        /// The upload of the checkpoint failed, so it may not exist.
        may_be_missing: bool,
    },
}

impl PluginCall {
    /// Reads the arguments, without the program's name. `Err` is the message for the user.
    pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut args = args.into_iter();
        let mut infile = None;
        let mut outfile = None;
        let mut direction = Direction::Download;
        while let Some(arg) = args.next() {
            match arg.as_bytes() {
                b"-classad" => return Ok(Self::Capabilities),
                b"-help" | b"--help" | b"-h" => return Ok(Self::Help),
                b"-infile" => infile = Some(value(&arg, args.next())?),
                b"-outfile" => outfile = Some(value(&arg, args.next())?),
                b"-upload" => direction = Direction::Upload,
                _ => return Err(unknown(&arg)),
            }
        }
        match (infile, outfile) {
            (Some(infile), Some(outfile)) => Ok(Self::Transfer {
                infile: infile.into(),
                outfile: outfile.into(),
                direction,
            }),
            _ => Err("-infile FILE and -outfile FILE are needed, or -classad".into()),
        }
    }
}

impl CleanupCall {
    /// Reads the arguments, without the program's name. `Err` is the message for the user.
    pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut args = args.into_iter();
        let mut from = None;
        let mut file = None;
        let mut job_ad = None;
        let mut may_be_missing = false;
        while let Some(arg) = args.next() {
            match arg.as_bytes() {
                b"-help" | b"--help" | b"-h" => return Ok(Self::Help),
                b"-from" => from = Some(value(&arg, args.next())?),
                b"-delete" | b"-file" => file = Some(value(&arg, args.next())?),
                b"-jobad" => job_ad = Some(PathBuf::from(value(&arg, args.next())?)),
                b"-ignore-missing-files" => may_be_missing = true,
                _ => return Err(unknown(&arg)),
            }
        }
        match (from, file) {
            (Some(from), Some(file)) => Ok(Self::Delete {
                from: from.as_bytes().to_vec(),
                file: file.as_bytes().to_vec(),
                job_ad,
                may_be_missing,
            }),
            _ => Err("-from URL and -delete FILE are needed".into()),
        }
    }
}

fn value(arg: &OsString, value: Option<OsString>) -> Result<OsString, String> {
    value.ok_or_else(|| format!("{} needs a value", arg.display()))
}

fn unknown(arg: &OsString) -> String {
    format!(
        "{:?} is not an argument of this program",
        arg.display().to_string()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn calls_of_htcondor_are_understood() {
        let plugin = |line| PluginCall::parse(args(line));
        let transfer = |direction| {
            Ok(PluginCall::Transfer {
                infile: "/s/.in".into(),
                outfile: "/s/.out".into(),
                direction,
            })
        };
        assert_eq!(plugin("-classad"), Ok(PluginCall::Capabilities));
        assert_eq!(
            plugin("-infile /s/.in -outfile /s/.out -upload"),
            transfer(Direction::Upload)
        );
        assert_eq!(
            plugin("-outfile /s/.out -infile /s/.in"),
            transfer(Direction::Download)
        );
        let cleanup = |line| CleanupCall::parse(args(line));
        let delete = |job_ad: Option<&str>, may_be_missing| {
            Ok(CleanupCall::Delete {
                from: b"ckpt://lab/a/m_1.0_7/0001".to_vec(),
                file: b"out".to_vec(),
                job_ad: job_ad.map(PathBuf::from),
                may_be_missing,
            })
        };
        assert_eq!(
            cleanup("-from ckpt://lab/a/m_1.0_7/0001 -delete out -jobad /x/.job.ad"),
            delete(Some("/x/.job.ad"), false)
        );
        assert_eq!(
            cleanup("-from ckpt://lab/a/m_1.0_7/0001 -file out -ignore-missing-files"),
            delete(None, true)
        );
    }

    #[test]
    fn other_calls_are_refused() {
        for line in [
            "",
            "-infile x",
            "-infile",
            "-outfile x",
            "save",
            "ckpt://lab/x y",
        ] {
            assert!(PluginCall::parse(args(line)).is_err(), "{line}");
        }
        for line in [
            "",
            "-from x",
            "-delete x",
            "-from x -delete",
            "-from x -delete y z",
        ] {
            assert!(CleanupCall::parse(args(line)).is_err(), "{line}");
        }
    }
}
