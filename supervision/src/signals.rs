//! What a signal to `ckpt run` means, in each phase of a run.

/// Number of SIGHUP. POSIX and Linux fix this number and the next ones.
pub const HUP: u8 = 1;
/// Number of SIGINT, which Ctrl-C sends.
pub const INT: u8 = 2;
/// Number of SIGQUIT.
pub const QUIT: u8 = 3;
/// Number of SIGUSR1.
pub const USR1: u8 = 10;
/// Number of SIGUSR2.
pub const USR2: u8 = 12;
/// Number of SIGTERM.
pub const TERM: u8 = 15;
/// Number of SIGTSTP, which Ctrl-Z sends.
pub const TSTP: u8 = 20;
/// Number of SIGWINCH: the size of the terminal has changed.
pub const WINCH: u8 = 28;

/// The signals that `ckpt run` handles. All others have the effect that the system gives them.
pub const TAKEN: [u8; 8] = [HUP, INT, QUIT, USR1, USR2, TERM, TSTP, WINCH];

/// A phase of a run. It decides what a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No process of the job is there: its files are restored, staged or fetched, or hosts are waited for.
    Transfer,
    /// The job runs on this machine.
    Run,
    /// The job runs on another machine (`ckpt run --on`).
    Elsewhere,
    /// The job leaves this machine, or is being ended.
    Leave,
    /// The job has ended, and its result is saved.
    Result,
}

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: neither `ckpt run` nor the job notices it.
    Nothing,
    /// The job has to leave, and is to be started again. If it does not run, `ckpt run` ends with the status
    /// for that.
    Leave,
    /// `ckpt run` ends with 128 plus the number of the signal.
    End,
    /// The job gets the signal.
    PassOn,
    /// The user is impatient with a job that leaves: the job is ended if this signal comes often enough.
    Insist,
    /// `ckpt run` stops itself, and the job with it, until SIGCONT.
    Pause,
}

/// What the signal of this number means in this phase.
///
/// While a job leaves, its handler of SIGTERM may be writing its last state, so no signal is passed on.
#[must_use]
pub const fn meaning(phase: Phase, signal: u8) -> Meaning {
    match (phase, signal) {
        (_, TSTP) => Meaning::Pause,
        _ if asks_to_leave(signal) => Meaning::Leave,
        // Without its terminal, `ckpt run --on` can't show output; the job runs on.
        (Phase::Transfer, HUP | INT | QUIT) | (Phase::Elsewhere, HUP) => Meaning::End,
        (Phase::Run, HUP | INT | QUIT | USR2 | WINCH)
        | (Phase::Elsewhere, INT | QUIT | USR2 | WINCH) => Meaning::PassOn,
        (Phase::Leave, INT) => Meaning::Insist,
        _ => Meaning::Nothing,
    }
}

/// Whether this signal asks the job to leave, in every phase: SIGTERM and SIGUSR1.
#[must_use]
pub const fn asks_to_leave(signal: u8) -> bool {
    matches!(signal, TERM | USR1)
}

/// Orders signals that came together: those that ask to leave come first. systemd sends SIGHUP right after
/// SIGTERM (`SendSIGHUP=yes`), and the kernel delivers the lower number first.
pub fn leaving_first(together: &mut [u8]) {
    together.sort_by_key(|signal| !asks_to_leave(*signal));
}

/// The name of a signal, such as `SIGTERM`.
#[must_use]
pub fn name(signal: u8) -> String {
    let name = match signal {
        HUP => "SIGHUP",
        INT => "SIGINT",
        QUIT => "SIGQUIT",
        USR1 => "SIGUSR1",
        USR2 => "SIGUSR2",
        TERM => "SIGTERM",
        TSTP => "SIGTSTP",
        WINCH => "SIGWINCH",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/use/run.md`, in the order of [`TAKEN`].
    const TABLE: [(Phase, [Meaning; 8]); 5] = {
        use Meaning::{End, Insist, Leave, Nothing, PassOn, Pause};
        [
            (
                Phase::Transfer,
                [End, End, End, Leave, Nothing, Leave, Pause, Nothing],
            ),
            (
                Phase::Run,
                [PassOn, PassOn, PassOn, Leave, PassOn, Leave, Pause, PassOn],
            ),
            (
                Phase::Elsewhere,
                [End, PassOn, PassOn, Leave, PassOn, Leave, Pause, PassOn],
            ),
            (
                Phase::Leave,
                [
                    Nothing, Insist, Nothing, Leave, Nothing, Leave, Pause, Nothing,
                ],
            ),
            (
                Phase::Result,
                [
                    Nothing, Nothing, Nothing, Leave, Nothing, Leave, Pause, Nothing,
                ],
            ),
        ]
    };

    #[test]
    fn each_signal_means_in_each_phase_what_the_page_says() {
        for (phase, row) in TABLE {
            let means = TAKEN.map(|signal| meaning(phase, signal));
            assert_eq!(means, row, "{phase:?}");
        }
    }

    #[test]
    fn a_signal_that_informs_ends_no_phase() {
        for (phase, _) in TABLE {
            for signal in [USR2, WINCH, TSTP] {
                let means = meaning(phase, signal);
                assert!(!matches!(means, Meaning::End | Meaning::Leave), "{phase:?}");
            }
        }
    }

    #[test]
    fn of_signals_that_come_together_those_that_ask_to_leave_count_first() {
        let mut together = [HUP, WINCH, TERM, INT, USR1];
        leaving_first(&mut together);
        assert_eq!(together, [TERM, USR1, HUP, WINCH, INT]);
    }

    #[test]
    fn names_are_those_of_the_system() {
        assert_eq!(TAKEN.map(name)[5], "SIGTERM");
        assert_eq!(name(64), "signal 64");
    }
}
