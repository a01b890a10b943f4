//! What was probably meant by a misspelt word: one measure for every file that people write.

/// Furthest misspelling that earns a suggestion.
const SUGGESTION_DISTANCE: usize = 2;

/// The known word that was most likely meant.
#[must_use]
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let (distance, near) = known.iter().map(|k| (distance(word, k), *k)).min()?;
    (distance <= SUGGESTION_DISTANCE).then_some(near)
}

/// Levenshtein's, over bytes: known words are ASCII.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > SUGGESTION_DISTANCE {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named_and_a_far_one_is_not() {
        let known = ["host", "port", "ports"];
        for (word, meant) in [("hst", Some("host")), ("prot", Some("port")), ("portss", Some("ports")), ("", None)] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
        assert_eq!(nearest("elsewhere", &known), None);
        assert_eq!(nearest("host", &[]), None);
    }
}
