//! Writes YAML that YAML 1.1 and 1.2 read alike (Go's readers know both): what could be taken for something else than a
//! string is quoted. Not a serialiser's work, because every byte is reviewed and compared.

use std::fmt::Write;

use serde_json::Value;

/// A document, ending with a line feed.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(_) | Value::Array(_) if !is_empty(value) => block(&mut out, value, 0),
        scalar => {
            inline(&mut out, scalar, 0);
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// A map or list, each entry on lines of its own; the cursor is where the first one begins.
fn block(out: &mut String, value: &Value, indent: usize) {
    let mut first = true;
    let mut start = |out: &mut String| {
        if !std::mem::take(&mut first) {
            let _ = write!(out, "{:indent$}", "");
        }
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                start(out);
                scalar(out, name);
                out.push(':');
                if is_empty(value) {
                    out.push(' ');
                    inline(out, value, indent);
                } else if matches!(value, Value::Object(_) | Value::Array(_)) {
                    let _ = write!(out, "\n{:1$}", "", indent + STEP);
                    block(out, value, indent + STEP);
                    continue;
                } else {
                    out.push(' ');
                    inline(out, value, indent + STEP);
                }
                end_line(out);
            }
        }
        Value::Array(items) => {
            for value in items {
                start(out);
                out.push_str("- ");
                if !is_empty(value) && matches!(value, Value::Object(_) | Value::Array(_)) {
                    block(out, value, indent + STEP);
                } else {
                    inline(out, value, indent + STEP);
                    end_line(out);
                }
            }
        }
        _ => {}
    }
}

/// Columns that a level is further in.
const STEP: usize = 2;

fn end_line(out: &mut String) {
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Object(fields) if fields.is_empty())
        || matches!(value, Value::Array(items) if items.is_empty())
}

/// A scalar or something empty; a text of lines is written as such, `indent` columns in.
fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) if is_literal(text) => {
            out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
            for line in text.lines() {
                if line.is_empty() {
                    out.push('\n');
                } else {
                    let _ = writeln!(out, "{:indent$}{line}", "");
                }
            }
        }
        Value::String(text) => scalar(out, text),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Whether the text can stand as lines: the reader takes the indentation from the first one, and keeps one last line feed.
fn is_literal(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\t', '\n'])
        && text.chars().all(|letter| letter == '\n' || is_plain_letter(letter))
}

/// Printable in every version of YAML, and no line break in any.
fn is_plain_letter(letter: char) -> bool {
    matches!(letter, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}')
}

fn scalar(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    // JSON in a string stays readable so.
    if text.contains(['"', '\\']) && text.chars().all(is_plain_letter) {
        let _ = write!(out, "'{}'", text.replace('\'', "''"));
        return;
    }
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            letter if is_plain_letter(letter) => out.push(letter),
            letter if u32::from(letter) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => {
                let _ = write!(out, "\\U{:08x}", u32::from(letter));
            }
        }
    }
    out.push('"');
}

/// Whether a string can stand without quotes: a word, a path or a flag, and nothing that a reader knows otherwise.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let flag = text.strip_prefix("--").unwrap_or(text);
    flag.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_.@:+=-,".contains(&byte))
        && !text.ends_with(':')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}
