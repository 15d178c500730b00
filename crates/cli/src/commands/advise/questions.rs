//! Asks the questions of `leasehold advise` that no option has answered.

use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use leasehold::advice::{Answers, Overlap, Protects, QUESTIONS, Question};

use super::Flags;
use crate::{args, exit::Failure, terminal};

/// How often a question is asked again after an invalid answer.
const ATTEMPTS_MAX: usize = 3;

impl Flags {
    /// The answers by options, in the order of the questions.
    fn given(&self) -> [Option<String>; 13] {
        let lasts = self.lasts.map(|lasts| format!("{}", lasts.as_secs_f64()));
        [
            self.protects.clone(),
            self.overlap.clone(),
            self.duplicates.clone(),
            self.idempotent.clone(),
            self.fence.clone(),
            self.survive.clone(),
            lasts,
            self.split.clone(),
            self.conditional.clone(),
            self.consensus.clone(),
            self.redis_only.clone(),
            self.regions.clone(),
            self.audit.clone(),
        ]
    }
}

/// The answers by options, completed by asking on the terminal.
pub(super) fn complete(flags: &Flags) -> Result<Answers, Failure> {
    let mut given = flags.given();
    let total = QUESTIONS.len();
    let mut stdin = io::stdin().lock();
    for (at, question) in QUESTIONS.iter().enumerate() {
        if given[at].is_none() {
            given[at] = ask(at + 1, total, question, &mut stdin, &mut io::stderr())?;
        }
        if given[at].is_none() {
            let open = QUESTIONS[at..].iter().zip(&given[at..]).filter(|(_, given)| given.is_none());
            let flags: Vec<_> = open.map(|(question, _)| format!("--{}", question.name)).collect();
            let message = format!("{} of {total} questions have no answer", flags.len());
            return Err(Failure::usage(message).hint(format!("answer them, or use {}", flags.join(", "))));
        }
    }
    Ok(read(&given.map(Option::unwrap_or_default)))
}

/// Asks one question. `None` at the end of the input.
fn ask(
    number: usize,
    total: usize,
    question: &Question,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> Result<Option<String>, Failure> {
    let mut text = format!("\n{number} of {total}  {}\n", question.asks);
    if question.choices.iter().any(|choice| choice.name != choice.means && choice.name != "no") {
        for choice in question.choices {
            text.push_str(&format!("  {:10} {}\n", choice.name, choice.means));
        }
    }
    for _ in 0..ATTEMPTS_MAX {
        // An error is ignored: with stderr closed, answers can still be read.
        let _ =
            terminal::without_sigttou(|| write!(to, "{text}{} ", prompt(question)).and_then(|()| to.flush()));
        let mut line = String::new();
        match from.read_line(&mut line) {
            Ok(0) => {
                // The next output starts on a new line.
                let _ = terminal::without_sigttou(|| writeln!(to));
                return Ok(None);
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::usage(format!("cannot read the answer: {error}"))),
        }
        if let Some(answer) = parse_answer(question, line.trim()) {
            return Ok(Some(answer));
        }
        text.clear();
    }
    let message = format!("no valid answer to {:?} was given", question.asks);
    Err(Failure::usage(message).hint(format!("use --{}", question.name)))
}

fn prompt(question: &Question) -> String {
    let names: Vec<_> = question.choices.iter().map(|choice| choice.name).collect();
    if names.is_empty() { "[such as 30s, 5m]".to_owned() } else { format!("[{}]", names.join("/")) }
}

/// The one choice that starts with this text, or the text itself if the question asks for a duration. `None`
/// if it is not valid or not unique.
fn parse_answer(question: &Question, typed: &str) -> Option<String> {
    if question.choices.is_empty() {
        return args::duration(typed).is_ok().then(|| typed.to_owned());
    }
    let typed = typed.to_lowercase();
    let mut matching =
        question.choices.iter().filter(|choice| !typed.is_empty() && choice.name.starts_with(&typed));
    match (matching.next(), matching.next()) {
        (Some(one), None) => Some(one.name.to_owned()),
        _ => None,
    }
}

/// Converts the answers. They are valid: each was parsed by clap or by [`parse_answer`].
fn read(given: &[String; 13]) -> Answers {
    let yes = |at: usize| given[at] == "yes";
    let protects = Protects::ALL.into_iter().find(|one| one.as_str() == given[0]);
    let overlap = Overlap::ALL.into_iter().find(|one| one.as_str() == given[1]);
    Answers {
        protects: protects.unwrap_or(Protects::External),
        overlap: overlap.unwrap_or(Overlap::Harm),
        duplicates: yes(2),
        idempotent: yes(3),
        fence: yes(4),
        survive: yes(5),
        lasts: args::duration(&given[6]).unwrap_or(Duration::MAX),
        split: yes(7),
        conditional: yes(8),
        consensus: yes(9),
        redis_only: yes(10),
        regions: yes(11),
        audit: yes(12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(name: &str, lines: &str) -> Result<Option<String>, Failure> {
        let question = QUESTIONS.iter().find(|question| question.name == name).unwrap();
        ask(1, 13, question, &mut lines.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn the_start_of_a_choice_is_enough_if_it_is_unique() {
        assert_eq!(answer("fence", "y\n").unwrap().unwrap(), "yes");
        assert_eq!(answer("fence", " No \n").unwrap().unwrap(), "no");
        assert_eq!(answer("protects", "r\nre\nreq\n").unwrap().unwrap(), "request", "asked again");
        assert_eq!(answer("protects", "row").unwrap().unwrap(), "row");
        assert_eq!(answer("lasts", "soon\n5m\n").unwrap().unwrap(), "5m");
    }

    #[test]
    fn invalid_answers_end_the_questions_and_so_does_the_end_of_input() {
        assert!(answer("fence", "maybe\nperhaps\n\n").unwrap_err().message.contains("no valid answer"));
        assert!(answer("fence", "maybe\n").unwrap().is_none());
    }
}
