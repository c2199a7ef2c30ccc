//! What runs of one program have in common, the words, and how they differ, the numbers.

use std::ffi::OsString;
use std::path::Path;

/// Stands for a number among the words.
const NUMBER: &str = "#";

/// Longest name of a parameter, bytes.
const NAME_BYTES_MAX: usize = 64;

/// Longest value of a parameter, bytes.
const VALUE_BYTES_MAX: usize = 1024;

/// A parameter that the user names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parameter {
    /// Name of the parameter.
    pub name: String,
    /// Its value: a number, or a word.
    pub value: String,
}

impl Parameter {
    /// Reads `NAME=VALUE`.
    ///
    /// # Errors
    /// When it is something else, or too long.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("NAME=VALUE")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
            return Err(format!(
                "name {name:?}: a name has 1 to {NAME_BYTES_MAX} characters of a-z A-Z 0-9 . _ -"
            ));
        }
        if value.len() > VALUE_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(format!(
                "the value of {name} has more than {VALUE_BYTES_MAX} bytes, or a control character"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// The words and numbers of a run. Runs with the same words can be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The program's name without its directory, and its words; `#` stands for each number.
    pub words: Vec<String>,
    /// The numbers, in the order of the words.
    pub numbers: Vec<f64>,
}

impl Kind {
    /// The kind of a command. If the user names parameters, only they and the program's name count.
    pub fn of(command: &[OsString], parameters: &[Parameter]) -> Self {
        let mut words = command.iter().map(|word| word.to_string_lossy());
        let program = words.next().unwrap_or_default();
        let name = Path::new(program.as_ref()).file_name();
        let name = name.map_or_else(|| program.clone(), |name| name.to_string_lossy());
        let mut kind = Self {
            words: vec![name.into_owned()],
            numbers: Vec::new(),
        };
        if parameters.is_empty() {
            for word in words {
                kind.add("", &word);
            }
            return kind;
        }
        let mut sorted = parameters.to_vec();
        sorted.sort();
        for Parameter { name, value } in sorted {
            kind.add(&format!("{name}="), &value);
        }
        kind
    }

    fn add(&mut self, before: &str, word: &str) {
        // `--steps=100` is a word and a number.
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if before.is_empty() && option.starts_with('-') => {
                (format!("{option}="), value)
            }
            _ => (before.to_owned(), word),
        };
        let number = value.parse::<f64>().ok().filter(|number| {
            // `nan`, `inf` and `infinity` count as words.
            number.is_finite() && value.contains(|c: char| c.is_ascii_digit())
        });
        match number {
            Some(number) => {
                self.numbers.push(number);
                self.words.push(format!("{option}{NUMBER}"));
            }
            // A word `#` is doubled, so that it differs from a number.
            None if value == NUMBER => self.words.push(format!("{option}{NUMBER}{NUMBER}")),
            None => self.words.push(format!("{option}{value}")),
        }
    }

    /// The words in one line, with the numbers in their places.
    pub fn line(&self) -> String {
        line(&self.words, &self.numbers)
    }

    /// The words in one line, with `#` for each number.
    pub fn shape(&self) -> String {
        self.words.join(" ")
    }

    /// The name of the number at this place: its option or parameter, else its place.
    pub fn name_of(&self, place: usize) -> String {
        let is_number = |word: &&String| word.ends_with(NUMBER) && !word.ends_with("##");
        let Some(at) = self
            .words
            .iter()
            .enumerate()
            .filter(|(_, word)| is_number(word))
            .map(|(at, _)| at)
            .nth(place)
        else {
            return format!("number {}", place + 1);
        };
        let own = self.words.get(at).and_then(|word| word.split_once('='));
        let before = at.checked_sub(1).and_then(|before| self.words.get(before));
        match (own, before) {
            (Some((name, _)), _) => name.to_owned(),
            (None, Some(option)) if option.starts_with('-') && !option.ends_with(NUMBER) => {
                option.clone()
            }
            _ => format!("number {}", place + 1),
        }
    }
}

/// The words in one line, with the numbers in their places.
pub fn line(words: &[String], numbers: &[f64]) -> String {
    let mut numbers = numbers.iter();
    let mut line = Vec::with_capacity(words.len());
    for word in words {
        let without = word.strip_suffix(NUMBER);
        line.push(
            match (without, without.and_then(|one| one.strip_suffix(NUMBER))) {
                (Some(before), Some(_)) => before.to_owned(),
                (Some(before), None) => match numbers.next() {
                    Some(number) => format!("{before}{number}"),
                    None => word.clone(),
                },
                (None, _) => word.clone(),
            },
        );
    }
    line.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &[&str], parameters: &[&str]) -> Kind {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let parameters: Vec<Parameter> = parameters
            .iter()
            .map(|text| Parameter::parse(text).unwrap())
            .collect();
        Kind::of(&command, &parameters)
    }

    #[test]
    fn numbers_differ_and_words_do_not() {
        let kind = of(
            &[
                "/home/me/sim",
                "--steps",
                "1000",
                "--dt=1e-3",
                "-5",
                "in.txt",
                "#",
                "nan",
            ],
            &[],
        );
        assert_eq!(kind.shape(), "sim --steps # --dt=# # in.txt ## nan");
        assert_eq!(kind.numbers, [1000.0, 1e-3, -5.0]);
        assert_eq!(kind.line(), "sim --steps 1000 --dt=0.001 -5 in.txt # nan");
        let names: Vec<String> = (0..4).map(|place| kind.name_of(place)).collect();
        assert_eq!(names, ["--steps", "--dt", "number 3", "number 4"]);
        assert_eq!(
            of(&["./sim", "--steps", "7"], &[]).words,
            of(&["sim", "--steps", "8"], &[]).words
        );
    }

    #[test]
    fn with_parameters_the_command_does_not_count_and_their_order_neither() {
        let kind = of(&["./sim", "out-17.dat", "99"], &["size=20", "method=euler"]);
        assert_eq!(kind.shape(), "sim method=euler size=#");
        assert_eq!(kind.numbers, [20.0]);
        assert_eq!(kind.name_of(0), "size");
        assert_eq!(kind, of(&["sim"], &["method=euler", "size=20"]));
    }

    #[test]
    fn a_parameter_has_a_name_and_a_value() {
        for wrong in ["", "=1", "a b=1", "n", "x=a\nb"] {
            assert!(Parameter::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Parameter::parse(&format!("{}=1", "n".repeat(65))).is_err());
        assert!(Parameter::parse("n=").is_ok());
    }
}
