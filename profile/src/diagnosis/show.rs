//! A finding as text.

use std::fmt;

use super::Finding;

/// Lines for a terminal, the code before the first one.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, line) in wrap(&self.message, TEXT_WIDTH).into_iter().enumerate() {
            let (end, label) =
                if number == 0 { ("", format!("{}:", self.code)) } else { ("\n", String::new()) };
            write!(f, "{end}  {label:<23} {line}")?;
        }
        Ok(())
    }
}

const TEXT_WIDTH: usize = 84;

/// Breaks a text between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
