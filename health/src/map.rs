//! A map of shards as SVG: a line for each job, a column for each host, a cell for each shard, coloured by what the
//! job can still lose. Numbers and words say the same as the colours.

use command_line::text::shortened;
use maud::{Markup, html};

/// What a map shows. All texts may be chosen by others.
#[derive(Clone, Debug, Default)]
pub struct Map<'a> {
    /// The columns.
    pub hosts: Vec<MapColumn<'a>>,
    /// The lines.
    pub jobs: Vec<MapLine<'a>>,
    /// The content of the map, in a sentence.
    pub says: String,
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct MapColumn<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it is assumed to go away.
    pub goes: bool,
}

/// A job.
#[derive(Clone, Debug)]
pub struct MapLine<'a> {
    /// Its name.
    pub job: &'a str,
    /// How many shards it can lose; `None` if it can't be restored.
    pub can_lose: Option<usize>,
    /// How it stands, in words.
    pub says: String,
    /// Its shards: the number of the column, and the number of the shard.
    pub shards: Vec<(usize, u8)>,
}

/// The rules for the classes of a map, for a picture that stands alone.
pub const STYLE: &str = include_str!("map.css");

/// Sizes in units of the picture.
const CELL: usize = 18;
const NAMES_WIDTH: usize = 190;
const HEADS_HEIGHT: usize = 130;
const WORDS_WIDTH: usize = 260;

/// Longest name, characters: as many as fit.
const NAME_WIDTH: usize = 26;
const HEAD_WIDTH: usize = 20;

/// The picture. One that `stands_alone` is a whole file of SVG.
#[must_use]
pub fn svg(map: &Map<'_>, stands_alone: bool) -> Markup {
    let width = NAMES_WIDTH + map.hosts.len() * CELL + WORDS_WIDTH;
    let height = HEADS_HEIGHT + (map.jobs.len() + 1) * CELL;
    html! {
        svg.map xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
            viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(map.says) {
            title { (map.says) }
            @if stands_alone { style { ":root { color-scheme: light dark; } " (STYLE) } }
            @for (number, host) in map.hosts.iter().enumerate() { (head(number, host, height)) }
            @for (number, line) in map.jobs.iter().enumerate() { (row(number, line, map)) }
            @if stands_alone { text x="0" y=(height - 3) { (map.says) } }
        }
    }
}

fn head(number: usize, host: &MapColumn<'_>, height: usize) -> Markup {
    let x = NAMES_WIDTH + number * CELL;
    let turn = format!(
        "translate({} {}) rotate(-60)",
        x + CELL / 2 + 3,
        HEADS_HEIGHT - 6
    );
    html! {
        @if host.goes {
            rect.goes x=(x) y=(HEADS_HEIGHT) width=(CELL - 1) height=(height - HEADS_HEIGHT - CELL) {}
        }
        text transform=(turn) {
            (shortened(host.name, HEAD_WIDTH))
            @if host.goes { ", goes" }
        }
    }
}

fn row(number: usize, line: &MapLine<'_>, map: &Map<'_>) -> Markup {
    let top = HEADS_HEIGHT + number * CELL;
    let base = top + CELL - 5;
    let class = match line.can_lose {
        None => "cell lost",
        Some(0) => "cell bad",
        Some(1) => "cell odd",
        Some(_) => "cell good",
    };
    let left = |column: usize| NAMES_WIDTH + column * CELL;
    let shards = line.shards.iter();
    html! {
        g {
            text x="0" y=(base) { (shortened(line.job, NAME_WIDTH)) }
            @for (column, shard) in shards.filter(|(column, _)| *column < map.hosts.len()) {
                rect class=(class) x=(left(*column)) y=(top) width=(CELL - 1) height=(CELL - 1) {}
                text.shard x=(left(*column) + CELL / 2) y=(base) { (shard) }
            }
            text x=(left(map.hosts.len()) + 8) y=(base) { (line.says) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map<'static> {
        Map {
            hosts: ["h00", "<b>"]
                .map(|name| MapColumn {
                    name,
                    goes: name == "<b>",
                })
                .to_vec(),
            jobs: [("42", Some(2)), ("43", None)]
                .map(|(job, can_lose)| MapLine {
                    job,
                    can_lose,
                    says: format!("{can_lose:?}"),
                    shards: vec![(0, 3), (1, 4), (7, 5)],
                })
                .to_vec(),
            says: "two jobs".to_owned(),
        }
    }

    #[test]
    fn each_shard_is_a_cell_in_its_column_and_says_what_its_job_can_lose() {
        let drawn = svg(&map(), true).into_string();
        assert_eq!(drawn.matches("<rect class=\"cell good\"").count(), 2);
        assert_eq!(drawn.matches("<rect class=\"cell lost\"").count(), 2);
        assert_eq!(drawn.matches("<rect class=\"goes\"").count(), 1);
        assert!(drawn.contains("<title>two jobs</title>") && drawn.contains(".map .lost"));
        assert!(
            drawn.contains("&lt;b&gt;") && !drawn.contains("<b>"),
            "{drawn}"
        );
        let of_first = format!("x=\"{NAMES_WIDTH}\" y=\"{HEADS_HEIGHT}\"");
        assert!(drawn.contains(&of_first), "{drawn}");
        let on_page = svg(&map(), false).into_string();
        assert!(!on_page.contains("<style"));
    }
}
