//! The table of what a server answers: a path, and who makes the answer.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::http::HeaderValue;
use hyper::{HeaderMap, Method, Response, StatusCode};

/// What is sent back: all of it is in memory.
pub type Answer = Response<Full<Bytes>>;

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;
type Answerer = Box<dyn Fn(HeaderMap) -> Answering + Send + Sync>;

/// What a server answers to `GET` and `HEAD`, by path. All other paths are not found.
#[derive(Default)]
pub struct Pages(BTreeMap<&'static str, Answerer>);

impl Pages {
    /// Adds a path. `answer` gets the headers of the request.
    #[must_use]
    pub fn with<F, A>(mut self, path: &'static str, answer: F) -> Self
    where
        F: Fn(HeaderMap) -> A + Send + Sync + 'static,
        A: Future<Output = Answer> + Send + 'static,
    {
        let answerer = move |headers| -> Answering { Box::pin(answer(headers)) };
        self.0.insert(path, Box::new(answerer));
        self
    }

    /// The paths of both. Where both have one, that of `others` counts.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    pub(crate) async fn answer(&self, method: &Method, path: &str, headers: HeaderMap) -> Answer {
        let Some(answerer) = self.0.get(path) else {
            return bare(StatusCode::NOT_FOUND);
        };
        // `hyper` leaves out the body of an answer to `HEAD`.
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refused = bare(StatusCode::METHOD_NOT_ALLOWED);
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        answerer(headers).await
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// An answer of a status alone.
pub(crate) fn bare(status: StatusCode) -> Answer {
    let mut answer = Answer::default();
    *answer.status_mut() = status;
    answer
}

/// An answer with a text whose media type is `kind`.
pub fn of_kind(kind: &'static str, text: String) -> Answer {
    let mut answer = Answer::new(text.into());
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
