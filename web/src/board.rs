//! A report on the state of things, as a page, as text and as JSON.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use health::Health;
use health::history::History;
use health::page::{STYLE, View, page};
use health::text;
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use hyper::http::HeaderValue;

use crate::pages::{Answer, Pages, bare, of_kind};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const CSS: &str = "text/css; charset=utf-8";

/// The last report, and how things were before. Clients are answered from it; none makes it look anew.
#[derive(Debug)]
pub struct Board {
    of: String,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    health: Option<Arc<Health>>,
    history: Arc<History>,
    stale: Option<String>,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
enum Form {
    Page { is_live: bool },
    Text,
    Json,
}

impl Board {
    /// A board without a report. `of` names whose state it will show, such as `grid lab`.
    pub fn new(of: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            of: of.into(),
            state: Mutex::default(),
        })
    }

    /// Replaces the report.
    pub fn show(&self, health: Health) {
        let mut state = self.state();
        Arc::make_mut(&mut state.history).enter(&health);
        state.health = Some(Arc::new(health));
        state.stale = None;
    }

    /// Keeps the report, and notes why there is no newer one.
    pub fn keep(&self, why: impl Into<String>) {
        self.state().stale = Some(why.into());
    }

    /// The pages `/`, `/live`, `/health.txt` and `/health.json`.
    pub fn pages(self: &Arc<Self>) -> Pages {
        let form = |form: Form| {
            let board = Arc::clone(self);
            move |_| Arc::clone(&board).answer(form)
        };
        Pages::default()
            .with("/", form(Form::Page { is_live: false }))
            .with("/live", form(Form::Page { is_live: true }))
            .with("/health.txt", form(Form::Text))
            .with("/health.json", form(Form::Json))
            .with("/style.css", async |_| of_kind(CSS, STYLE.to_owned()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self: Arc<Self>, form: Form) -> Answer {
        let state = self.state().clone();
        let Some(health) = state.health else {
            let why = state
                .stale
                .unwrap_or_else(|| "no report has been made yet".to_owned());
            let mut answer = of_kind(TEXT, format!("no report: {why}\n"));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            let seconds = HeaderValue::from_static("5");
            answer.headers_mut().insert(RETRY_AFTER, seconds);
            return answer;
        };
        // A large grid takes some milliseconds, in which other tasks of this thread would wait.
        let rendering = tokio::task::spawn_blocking(move || {
            let view = View {
                of: &self.of,
                health: &health,
                history: &state.history,
                now: unix_seconds(),
                stale: state.stale.as_deref(),
                is_live: false,
            };
            rendered(&view, form)
        });
        match rendering.await {
            Ok((kind, text)) => of_kind(kind, text),
            Err(_) => bare(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn rendered(view: &View<'_>, form: Form) -> (&'static str, String) {
    match form {
        Form::Page { is_live } => (HTML, page(&View { is_live, ..*view }).into_string()),
        Form::Text => {
            let mut text = Vec::new();
            // Writing to memory does not fail.
            let _ = text::write(&mut text, view.health);
            (TEXT, String::from_utf8_lossy(&text).into_owned())
        }
        // Numbers and texts have a form in JSON.
        Form::Json => (JSON, serde_json::to_string(view.health).unwrap_or_default()),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
