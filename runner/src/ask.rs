//! How a job is asked for a checkpoint.

use std::fmt;
use std::str::FromStr;

use rustix::process::Signal;

/// Signals with which a job can be asked, by name.
const SIGNALS: [(&str, Signal); 7] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
];

/// How a job is asked for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Not at all: it writes checkpoints when it likes.
    None,
    /// With a signal to the job's first process.
    Signal(Signal),
    /// With a command, run by `sh -c`.
    Command(String),
}

impl Ask {
    /// Whether the request is known to end the job. Then the job is asked only when it has to leave.
    pub fn ends_the_job(&self) -> bool {
        matches!(self, Self::Signal(signal) if *signal == Signal::TERM)
    }
}

impl FromStr for Ask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        if let Some(command) = text.strip_prefix("cmd:") {
            return match command.trim() {
                "" => Err("cmd: needs a command".into()),
                command => Ok(Self::Command(command.to_owned())),
            };
        }
        let name = text
            .strip_prefix("signal:")
            .ok_or("not one of none, signal:NAME (such as signal:USR2) and cmd:'COMMAND'")?;
        let name = name.strip_prefix("SIG").unwrap_or(name);
        let found = SIGNALS.iter().find(|(known, _)| *known == name);
        let signal = found.map(|(_, signal)| Self::Signal(*signal));
        signal.ok_or_else(|| {
            let names = SIGNALS.map(|(name, _)| name).join(", ");
            format!("{name:?} is not a signal; use one of {names}")
        })
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Signal(signal) => {
                let found = SIGNALS.iter().find(|(_, known)| known == signal);
                write!(f, "signal:{}", found.map_or("?", |(name, _)| name))
            }
            Self::Command(command) => write!(f, "cmd:{command}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_asking_are_read_and_written() {
        for text in ["none", "signal:USR2", "signal:TERM", "cmd:./save now"] {
            assert_eq!(text.parse::<Ask>().unwrap().to_string(), text);
        }
        assert_eq!("signal:SIGUSR1".parse(), Ok(Ask::Signal(Signal::USR1)));
        for text in ["", "USR2", "signal:KILL", "signal:", "cmd:", "cmd:  "] {
            assert!(text.parse::<Ask>().is_err(), "{text}");
        }
        assert!("signal:TERM".parse::<Ask>().unwrap().ends_the_job());
        assert!(!"signal:USR2".parse::<Ask>().unwrap().ends_the_job());
    }
}
