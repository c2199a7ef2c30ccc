//! A running launcher, and the messages that go through it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::words::{FromHost, LINE_BYTES_MAX, OUTPUT_BYTES_MAX, Order, ToHost};

/// Length of the queue of news from launchers. If it is full, the tasks that read from launchers wait.
pub(super) const NEWS_MAX: usize = 64;

/// Length of the queue of lines to a launcher.
const LINES_MAX: usize = 64;

/// Time for a launcher to end after its standard input was closed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Stands for the host's name in a launcher.
const HOST_PLACEHOLDER: &str = "{host}";

/// The command that starts a process on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    words: Vec<OsString>,
    program: String,
}

/// Why a text is no launcher.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// It has no words.
    #[error("the launcher is empty")]
    Empty,
    /// A quote is not closed.
    #[error("a quote is not closed")]
    Quote,
    /// It has no place for the host's name, so every host would be the same one.
    #[error("it does not contain {{host}}, which stands for the host's name")]
    NoHost,
    /// The program's name has signs that a shell would interpret.
    #[error("{0:?} has spaces or characters that a shell interprets")]
    Program(String),
}

impl Launcher {
    /// Reads a launcher as users type it, such as `ssh {host} --`. `program` is the name or path of
    /// `ckpt` on the hosts. Words are separated by spaces; quotes and backslashes work as in a shell.
    ///
    /// # Errors
    /// When the text is no launcher, or when the program's name is not safe.
    pub fn parse(text: &str, program: &str) -> Result<Self, LauncherError> {
        let words = split(text)?;
        if words.is_empty() {
            return Err(LauncherError::Empty);
        }
        if !words.iter().any(|word| word.contains(HOST_PLACEHOLDER)) {
            return Err(LauncherError::NoHost);
        }
        // The launcher may pass its words through a shell or not; the name has to mean the same in both
        // cases.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-~".contains(c);
        if program.is_empty() || program.starts_with('-') || !program.chars().all(is_plain) {
            return Err(LauncherError::Program(program.to_owned()));
        }
        Ok(Self {
            words: words.into_iter().map(OsString::from).collect(),
            program: program.to_owned(),
        })
    }

    /// The command line that starts `ckpt there` on a host.
    fn command(&self, host: &str) -> Vec<OsString> {
        let words = self.words.iter().map(|word| replaced(word, host));
        words
            .chain([self.program.clone().into(), "there".into()])
            .collect()
    }
}

fn replaced(word: &OsString, host: &str) -> OsString {
    let text = word.to_string_lossy().replace(HOST_PLACEHOLDER, host);
    OsString::from_vec(text.as_bytes().to_vec())
}

/// Splits a command line into words as a shell does, but without variables and wildcards.
fn split(text: &str) -> Result<Vec<String>, LauncherError> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(LauncherError::Quote)? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(LauncherError::Quote)? {
                        '"' => break,
                        '\\' => word.push(chars.next().ok_or(LauncherError::Quote)?),
                        c => word.push(c),
                    }
                }
            }
            '\\' => {
                let next = chars.next().ok_or(LauncherError::Quote)?;
                word.get_or_insert_default().push(next);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Something that arrived through a launcher.
#[derive(Debug)]
pub(super) enum News {
    /// A message of the host.
    Message(FromHost),
    /// Bytes of the job's standard output.
    Out(Vec<u8>),
    /// Bytes of the job's standard error.
    Err(Vec<u8>),
    /// A line that is no message, such as one of the launcher itself.
    Noise(String),
    /// The launcher has ended, or has closed its output.
    Ended,
}

/// A running launcher.
#[derive(Debug)]
pub(super) struct Link {
    /// Its number, which distinguishes its news from those of earlier launchers.
    pub number: u64,
    child: Child,
    lines: Option<mpsc::Sender<Vec<u8>>>,
}

impl Link {
    /// Starts the launcher for a host and sends the order through it.
    ///
    /// # Errors
    /// When the launcher can't be started.
    pub(super) fn start(
        launcher: &Launcher,
        order: &Order,
        number: u64,
        news: mpsc::Sender<(u64, News)>,
    ) -> io::Result<Self> {
        let mut words = launcher.command(&order.host).into_iter();
        let program = words.next().unwrap_or_default();
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own, so that keys at the terminal don't send signals to the launcher.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a launcher without standard streams"));
        };
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        let first = line(order)?;
        tokio::spawn(write(input, first, waiting));
        tokio::spawn(async move {
            // After any error the launcher is of no use.
            let _ = read(output, number, &news).await;
            let _ = news.send((number, News::Ended)).await;
        });
        Ok(Self {
            number,
            child,
            lines: Some(lines),
        })
    }

    /// Sends a message to the host. The message is lost if the launcher is stuck.
    pub(super) fn say(&self, message: ToHost) {
        if let (Some(lines), Ok(text)) = (&self.lines, line(&message)) {
            let _ = lines.try_send(text);
        }
    }

    /// Ends the launcher. Closing its standard input ends what runs at the other end; a launcher that
    /// does not end then is killed.
    pub(super) async fn close(mut self) {
        self.lines = None;
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if tokio::time::timeout(END_TIMEOUT, self.child.wait())
            .await
            .is_ok()
        {
            return;
        }
        if let Some(group) = pid {
            // Fails if it has just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait().await;
    }
}

fn line(message: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    Ok(text)
}

async fn write(mut input: ChildStdin, first: Vec<u8>, mut waiting: mpsc::Receiver<Vec<u8>>) {
    let mut next = Some(first);
    while let Some(text) = next {
        if input.write_all(&text).await.is_err() {
            return;
        }
        next = waiting.recv().await;
    }
}

async fn read(
    output: ChildStdout,
    number: u64,
    news: &mpsc::Sender<(u64, News)>,
) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut text = Vec::new();
    loop {
        text.clear();
        let mut part = (&mut output).take(LINE_BYTES_MAX);
        if part.read_until(b'\n', &mut text).await? == 0 {
            return Ok(());
        }
        let message = match serde_json::from_slice(&text) {
            Ok(FromHost::Out { bytes }) => News::Out(bytes_of(&mut output, bytes).await?),
            Ok(FromHost::Err { bytes }) => News::Err(bytes_of(&mut output, bytes).await?),
            Ok(message) => News::Message(message),
            Err(_) => News::Noise(String::from_utf8_lossy(&text).trim_end().to_owned()),
        };
        if news.send((number, message)).await.is_err() {
            return Ok(());
        }
    }
}

async fn bytes_of(output: &mut BufReader<ChildStdout>, bytes: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(bytes.min(OUTPUT_BYTES_MAX)).unwrap_or_default();
    if length as u64 != bytes {
        return Err(io::Error::other("more output than allowed"));
    }
    let mut part = vec![0; length];
    output.read_exact(&mut part).await?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_for(text: &str, host: &str) -> Result<Vec<String>, LauncherError> {
        let launcher = Launcher::parse(text, "ckpt")?;
        let words = launcher.command(host).into_iter();
        Ok(words.map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn a_launcher_is_split_once_and_a_host_is_no_more_than_a_part_of_a_word() {
        assert_eq!(
            line_for("ssh {host} --", "h 1;reboot").unwrap(),
            ["ssh", "h 1;reboot", "--", "ckpt", "there"]
        );
        assert_eq!(
            line_for(r#"  a' b'"c d\"" \  x{host}y'{host}' "" "#, "h").unwrap(),
            ["a bc d\"", " ", "xhyh", "", "ckpt", "there"]
        );
    }

    #[test]
    fn a_command_that_is_no_launcher_is_refused() {
        assert_eq!(line_for(" ", "h"), Err(LauncherError::Empty));
        assert_eq!(line_for("ssh host", "h"), Err(LauncherError::NoHost));
        for text in ["ssh '{host}", "ssh \"{host}", "ssh {host} \\"] {
            assert_eq!(line_for(text, "h"), Err(LauncherError::Quote), "{text}");
        }
        for program in ["", "-x", "a b", "a;b", "$HOME/ckpt", "a'b"] {
            let parsed = Launcher::parse("ssh {host}", program);
            assert_eq!(parsed, Err(LauncherError::Program(program.into())));
        }
        assert!(Launcher::parse("ssh {host}", "~/bin/ckpt").is_ok());
    }
}
