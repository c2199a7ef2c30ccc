//! `ckpt top`: the report of `ckpt health` in a terminal.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use tokio::sync::mpsc;

use ::health::text::{state, summary, unusual};
use ::health::{Health, HostHealth, HostState, JobHealth, span};

use super::args::{Global, TopArgs};
use super::dashboard::EVERY_MIN;
use super::render::{bytes, one_line, shortened, time};
use super::{Outcome, done, health, named_grid, render};
use crate::cancel::Cancel;
use crate::report::{ExitStatus, Failure};
use crate::unix_time::unix_seconds;

/// How often keys are looked for, and the age of the report is shown anew.
const KEY_PERIOD: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_secs(1);

/// Keys that were not handled yet. Further ones are dropped.
const KEYS_MAX: usize = 64;

const HELP: &str = "q quit  r refresh  arrows, Page Up and Down, Home, End scroll";

/// What is on the screen.
#[derive(Debug, Default)]
struct Screen {
    grid: String,
    health: Option<Health>,
    /// Why the report is not newer.
    stale: Option<String>,
    is_looking: bool,
    /// The first line of the report that is shown.
    first: usize,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Look,
    Up(usize),
    Down(usize),
    First,
    Last,
    Redraw,
}

/// Shows the report until the user ends it.
pub(super) async fn run(
    global: &Global,
    args: &TopArgs,
    mut cancel: Cancel,
) -> Result<Outcome, Failure> {
    if !io::stdout().is_terminal() {
        let what = "standard output is not a terminal";
        return Err(
            Failure::new(ExitStatus::Usage, what).next("ckpt health, or ckpt health --json")
        );
    }
    let (_, grid) = named_grid(global)?;
    let mut screen = Screen {
        grid: grid.name,
        ..Screen::default()
    };
    // The first look comes before the terminal is taken, so that what is wrong is said as usual.
    screen.health = tokio::select! {
        found = health::find(global, &args.health) => Some(found?),
        () = cancel.cancelled() => return done(render::Text(Vec::new())),
    };
    let failed = |cause: io::Error| Failure::new(ExitStatus::LocalIo, format!("terminal: {cause}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let (sender, mut wishes) = mpsc::channel(KEYS_MAX);
    let keys = tokio::task::spawn_blocking(move || read_keys(&sender));
    let every = args.every.max(EVERY_MIN);
    let mut next = tokio::time::Instant::now() + every;
    let mut looking = std::pin::pin!(health::find(global, &args.health));
    let shown = loop {
        let mut lines = 0;
        if let Err(cause) = terminal.draw(|frame| lines = draw(frame, &mut screen)) {
            break Err(failed(cause));
        }
        tokio::select! {
            wish = wishes.recv() => match wish {
                Some(Wish::Look) => next = tokio::time::Instant::now(),
                Some(Wish::End) | None => break Ok(()),
                Some(wish) => screen.first = wish.moved(screen.first, lines),
            },
            found = &mut looking, if screen.is_looking => {
                screen.found(found);
                looking.set(health::find(global, &args.health));
                next = tokio::time::Instant::now() + every;
            }
            () = tokio::time::sleep_until(next), if !screen.is_looking => screen.is_looking = true,
            () = tokio::time::sleep(TICK) => {}
            () = cancel.cancelled() => break Ok(()),
        }
    };
    ratatui::restore();
    drop(wishes);
    let _ = keys.await;
    shown?;
    done(render::Text(Vec::new()))
}

/// Reads keys until nobody wants them any more, or the terminal is gone.
fn read_keys(wishes: &mpsc::Sender<Wish>) {
    while !wishes.is_closed() {
        match event::poll(KEY_PERIOD) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(_) => return,
        }
        let Ok(event) = event::read() else { return };
        if let Some(wish) = Wish::of(&event) {
            let _ = wishes.try_send(wish);
        }
    }
}

impl Wish {
    fn of(event: &Event) -> Option<Self> {
        let Event::Key(key) = event else {
            return matches!(event, Event::Resize(..)).then_some(Self::Redraw);
        };
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => Some(Self::End),
            KeyCode::Char('q') | KeyCode::Esc => Some(Self::End),
            KeyCode::Char('r') => Some(Self::Look),
            KeyCode::Up | KeyCode::Char('k') => Some(Self::Up(1)),
            KeyCode::Down | KeyCode::Char('j') => Some(Self::Down(1)),
            KeyCode::PageUp => Some(Self::Up(20)),
            KeyCode::PageDown | KeyCode::Char(' ') => Some(Self::Down(20)),
            KeyCode::Home => Some(Self::First),
            KeyCode::End => Some(Self::Last),
            _ => None,
        }
    }

    /// The first line that is shown after this, of a report whose last page begins at `last`.
    fn moved(self, first: usize, last: usize) -> usize {
        let moved = match self {
            Self::Up(lines) => first.saturating_sub(lines),
            Self::Down(lines) => first.saturating_add(lines),
            Self::First => 0,
            Self::Last => last,
            Self::End | Self::Look | Self::Redraw => first,
        };
        moved.min(last)
    }
}

impl Screen {
    fn found(&mut self, found: Result<Health, Failure>) {
        self.is_looking = false;
        match found {
            Ok(health) => (self.health, self.stale) = (Some(health), None),
            Err(failure) => self.stale = Some(failure.message),
        }
    }
}

/// Draws the screen. Returns the first line of the last page.
fn draw(frame: &mut Frame<'_>, screen: &mut Screen) -> usize {
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [head, body, foot] = areas.areas(frame.area());
    let lines = match &screen.health {
        Some(health) => report(health, screen.stale.as_deref(), body.width.into()),
        None => Vec::new(),
    };
    let last = lines.len().saturating_sub(body.height.into());
    screen.first = screen.first.min(last);
    let age = screen
        .health
        .as_ref()
        .map_or(0, |health| unix_seconds().saturating_sub(health.at));
    let looks = if screen.is_looking { ", looking" } else { "" };
    let title = format!(
        "ckpt top: grid {}, {} ago{looks}",
        one_line(&screen.grid),
        span(age)
    );
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(title).style(reversed), head);
    let shown: Vec<Line<'_>> = lines
        .into_iter()
        .skip(screen.first)
        .take(body.height.into())
        .collect();
    frame.render_widget(Paragraph::new(shown), body);
    let more = if screen.first < last {
        "  (more below)"
    } else {
        ""
    };
    frame.render_widget(
        Paragraph::new(format!("{HELP}{more}")).style(reversed),
        foot,
    );
    last
}

fn heading(text: String) -> Line<'static> {
    Line::from(Span::styled(
        text,
        Style::new().add_modifier(Modifier::BOLD),
    ))
}

fn alarm(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().fg(Color::Red)))
}

/// The report as lines of at most `width` characters.
fn report(health: &Health, stale: Option<&str>, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(why) = stale {
        lines.push(alarm(shortened(
            &format!("not refreshed, because: {why}"),
            width,
        )));
    }
    if health.hosts.up.value == 0 {
        lines.push(alarm("NO HOST ANSWERS".to_owned()));
    } else if health.attention.is_empty() {
        lines.push(Line::from(Span::styled(
            "all is well",
            Style::new().fg(Color::Green),
        )));
    }
    for one in &health.attention {
        lines.push(alarm(shortened(
            &format!("! {}: {}", one.about, one.what),
            width,
        )));
    }
    if !health.jobs.is_empty() {
        lines.push(heading(format!(
            "{:<22} {:>7} {:>9} {:>14} {:>18}",
            "JOB", "VERSION", "AGE", "NEXT DUE", "STATE"
        )));
        lines.extend(health.jobs.iter().map(job_line));
    }
    if let Some(grid) = &health.grid {
        let restorable: u64 = grid.can_lose.iter().sum();
        let none = grid.can_lose.first().copied().unwrap_or(0);
        let text = format!(
            "CHECKPOINTS  {restorable} restorable, {none} can lose none, {} with too few shards, {} with fewer than saved",
            grid.too_few, grid.below
        );
        lines.push(heading(shortened(&text, width)));
    }
    lines.push(heading(shortened(
        &format!("HOSTS  {}", summary(&health.hosts)),
        width,
    )));
    lines.push(heading(format!(
        "{:<22} {:>10} {:>10} {:>12} {:>7}  {}",
        "HOST", "USED", "FREE", "RATE SEEN", "STAYS", "STATE"
    )));
    lines.extend(health.hosts.each.iter().map(|host| host_line(host, width)));
    for registry in &health.registries {
        let name = &registry.name;
        lines.push(match (&registry.hosts_heard, &registry.why) {
            (Some(heard), _) => Line::from(shortened(
                &format!("registry {name}: up, {} hosts", heard.value),
                width,
            )),
            (None, why) => {
                let why = why.as_deref().unwrap_or("no answer");
                alarm(shortened(&format!("registry {name}: down: {why}"), width))
            }
        });
    }
    for key in &health.keys {
        let text = format!("{}: until {}", key.what, time(key.ends.value));
        lines.push(Line::from(shortened(&text, width)));
    }
    lines
}

fn job_line(job: &JobHealth) -> Line<'static> {
    let due = match job.due_in_s() {
        None => "-".to_owned(),
        Some(due @ 0..) => format!("in {}", span(due.unsigned_abs())),
        Some(late) => format!("late {}", span(late.unsigned_abs())),
    };
    let text = format!(
        "{:<22} {:>7} {:>9} {:>14} {:>18}",
        shortened(&job.job.to_string(), 22),
        job.version.to_string(),
        span(job.age_s),
        due,
        state(job.can_lose.value),
    );
    if job.is_below_redundancy() {
        alarm(text)
    } else {
        Line::from(text)
    }
}

fn host_line(host: &HostHealth, width: usize) -> Line<'static> {
    let unknown = || "-".to_owned();
    let rate = host
        .bytes_per_second
        .map(|rate| format!("{}/s", bytes(rate as u64)));
    let stays = host.stays_10h.map(|stays| format!("{:.0}%", stays * 100.0));
    let text = format!(
        "{:<22} {:>10} {:>10} {:>12} {:>7}  {}",
        shortened(&host.name, 22),
        host.used_bytes.map_or_else(unknown, bytes),
        host.free_bytes.map_or_else(unknown, bytes),
        rate.unwrap_or_else(unknown),
        stays.unwrap_or_else(unknown),
        unusual(host).unwrap_or_else(|| "up".to_owned()),
    );
    let text = shortened(&text, width);
    match host.state {
        HostState::Down => alarm(text),
        HostState::Full | HostState::StandsBack => {
            Line::from(Span::styled(text, Style::new().fg(Color::Yellow)))
        }
        HostState::Up => Line::from(text),
    }
}

#[cfg(test)]
mod tests {
    use ::health::{HostsHealth, Known};
    use codec::{Redundancy, Version};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(hosts: usize) -> Screen {
        let each = (0..hosts).map(|number| HostHealth {
            name: format!("h{number:03}\u{1b}[2J"),
            state: HostState::Up,
            free_bytes: Some(5 << 30),
            ..HostHealth::default()
        });
        let health = Health {
            at: unix_seconds(),
            jobs: vec![JobHealth {
                job: "a-job-with-a-name-that-is-longer-than-its-column"
                    .parse()
                    .unwrap(),
                version: Version::new(7).unwrap(),
                versions: 2,
                created: Known::proved(0),
                age_s: 4000,
                interval_s: Some(3000),
                redundancy: Redundancy::DEFAULT,
                shards: Known::announced(3),
                can_lose: Known::announced(Some(0)),
                kept_until: None,
            }],
            hosts: HostsHealth::of(each.collect(), None),
            ..Health::default()
        };
        Screen {
            grid: "lab".into(),
            health: Some(health),
            ..Screen::default()
        }
    }

    fn drawn(screen: &mut Screen) -> (Vec<String>, usize) {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut last = 0;
        terminal.draw(|frame| last = draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y: u16| {
            (0..80)
                .map(|x| buffer[(x, y)].symbol().to_owned())
                .collect::<String>()
        };
        ((0..24).map(row).collect(), last)
    }

    #[test]
    fn a_small_terminal_shows_what_counts() {
        let (rows, last) = drawn(&mut screen(3));
        let text = rows.join("\n");
        assert_eq!(last, 0);
        for part in [
            "ckpt top: grid lab",
            "all is well",
            "a-job-with-a-name-tha…",
            "late 16 min",
            "can lose none",
            "3 of 3 hosts up",
            "h002",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_large_grid_is_paged_through() {
        let mut screen = screen(100);
        let (rows, last) = drawn(&mut screen);
        assert!(rows[23].contains("more below") && last > 80, "{last}");
        screen.first = Wish::Last.moved(0, last);
        let (rows, _) = drawn(&mut screen);
        assert!(
            rows[22].contains("h099") && !rows[23].contains("more below"),
            "{rows:#?}"
        );
        assert_eq!(Wish::Up(20).moved(last, last), last - 20);
        assert_eq!(Wish::Down(20).moved(last, last), last);
    }
}
