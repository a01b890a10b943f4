//! The matcher against its documentation, and against a matcher that is too simple to be wrong.

use proptest::prelude::*;

use crate::policy::request::glob::{Glob, GlobError};
use crate::policy::request::index::PathIndex;

#[test]
fn stars_match_as_documented() {
    for (pattern, yes, no) in [
        ("/a", &["/a"][..], &["/", "/a/", "/a/b", "/A"][..]),
        ("**", &["/", "/a", "/a/b/"], &[]),
        ("/**", &["/", "/a", "/a/b/"], &[]),
        ("/*", &["/a", "/a.b"], &["/", "/a/b", "/a/"]),
        ("/a/*", &["/a/b"], &["/a", "/a/", "/a/b/c"]),
        ("/a/**", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab"]),
        ("/a/*/c", &["/a/b/c"], &["/a/c", "/a/b/b/c", "/a//c"]),
        ("/a/**/c", &["/a/c", "/a/b/c", "/a/b/b/c", "/a/c/c"], &["/a/b", "/a/c/", "/ac"]),
        ("/**/c", &["/c", "/a/c"], &["/", "/c/a"]),
        ("/**/a/**", &["/a/", "/b/a/c"], &["/a", "/b/c"]),
        ("/a*", &["/a", "/abc"], &["/", "/b", "/a/b"]),
        ("/a*b*c", &["/abc", "/axbxc"], &["/acb", "/ab/c"]),
        ("/**/x*/y", &["/x/y", "/a/xx/y", "/xa/xb/y"], &["/y", "/x/a/y"]),
        ("/%72epos/%7e", &["/repos/~"], &["/repos/x"]),
    ] {
        let glob = Glob::path(pattern).unwrap();
        yes.iter().for_each(|path| assert!(glob.matches(path), "{pattern} {path}"));
        no.iter().for_each(|path| assert!(!glob.matches(path), "{pattern} {path}"));
    }
    for (pattern, yes, no) in [
        ("pkg.Service", &["pkg.Service"][..], &["pkg.service", "pkg.Service.X"][..]),
        ("pkg.*", &["pkg.Service"], &["pkg", "pkg.", "pkg.v1.Service"]),
        ("pkg.**", &["pkg.Service", "pkg.v1.Service"], &["pkg", "pkgs.Service"]),
        ("**.Service", &["Service", "a.b.Service"], &["a.Services"]),
        ("**", &["a", "a.b"], &[]),
    ] {
        let glob = Glob::dotted(pattern).unwrap();
        yes.iter().for_each(|name| assert!(glob.matches(name), "{pattern} {name}"));
        no.iter().for_each(|name| assert!(!glob.matches(name), "{pattern} {name}"));
    }
    for (pattern, yes, no) in [
        ("v*", &["v", "v1.2", "v/x/y"][..], &["", "w1"][..]),
        ("*", &["", "a/b.c"], &[]),
        ("**", &["", "a/b.c"], &[]),
        ("octo/**", &["octo/", "octo/a/b"], &["octo", "o/a"]),
        ("a", &["a"], &["", "A", "aa"]),
    ] {
        let glob = Glob::free(pattern).unwrap();
        yes.iter().for_each(|value| assert!(glob.matches(value), "{pattern} {value}"));
        no.iter().for_each(|value| assert!(!glob.matches(value), "{pattern} {value}"));
    }
}

#[test]
fn what_is_no_pattern_is_refused() {
    for (pattern, error) in [
        ("", GlobError::Empty),
        ("a", GlobError::Relative),
        ("***", GlobError::Relative),
        ("/a**", GlobError::Deep),
        ("/***", GlobError::Deep),
        ("/a?", GlobError::Special('?')),
        ("/[ab]", GlobError::Special('[')),
        ("/{a,b}", GlobError::Special('{')),
        ("/a\\*", GlobError::Special('\\')),
    ] {
        assert_eq!(Glob::path(pattern), Err(error), "{pattern}");
    }
    assert!(matches!(Glob::path(&"/a".repeat(65)), Err(GlobError::TooDeep(65))));
    assert!(Glob::path(&"/a".repeat(64)).is_ok());
    assert!(matches!(Glob::free(&"a".repeat(5000)), Err(GlobError::TooLong(5000))));
}

#[test]
fn specificity_counts_what_is_no_wildcard() {
    let of = |pattern: &str| Glob::path(pattern).unwrap().specificity();
    assert_eq!((of("**"), of("/**"), of("/a/**"), of("/a/b"), of("/a*/b")), (0, 0, 3, 4, 4));
}

#[test]
fn a_long_text_against_many_stars_is_quick() {
    let glob = Glob::path(&format!("{}/z", "/**/a".repeat(20))).unwrap();
    let started = std::time::Instant::now();
    assert!(!glob.matches(&"/a".repeat(2000)));
    let glob = Glob::free(&format!("{}z", "*a".repeat(500))).unwrap();
    assert!(!glob.matches(&"a".repeat(16_000)));
    assert!(started.elapsed() < std::time::Duration::from_secs(1));
}

/// By its definition, without regard to cost.
fn naive(pattern: &[&str], text: &[&str]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((&"**", [])) => !text.is_empty(),
        Some((&"**", rest)) => (0..=text.len()).any(|skipped| naive(rest, &text[skipped..])),
        Some((segment, rest)) => text.split_first().is_some_and(|(first, others)| {
            let fits = if *segment == "*" { !first.is_empty() } else { letters(segment.as_bytes(), first.as_bytes()) };
            fits && naive(rest, others)
        }),
    }
}

fn letters(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| letters(rest, &text[skipped..])),
        Some((letter, rest)) => text.first() == Some(letter) && letters(rest, &text[1..]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_matcher_and_the_definition_agree(
        pattern in prop::collection::vec(
            prop_oneof![3 => "[ab]{1,2}", 1 => Just("*".to_owned()), 2 => Just("**".to_owned()), 1 => "a\\*b?", 1 => "\\*a\\*"],
            1..6,
        ),
        text in prop::collection::vec("[ab]{0,3}", 1..7),
    ) {
        let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
        let text: Vec<&str> = text.iter().map(String::as_str).collect();
        let expected = pattern == ["**"] || naive(&pattern, &text);
        let path = Glob::path(&format!("/{}", pattern.join("/"))).unwrap();
        prop_assert_eq!(path.matches(&format!("/{}", text.join("/"))), expected);
        let name = Glob::dotted(&pattern.join(".")).unwrap();
        prop_assert_eq!(name.matches(&text.join(".")), expected);
        let free = Glob::free(&pattern.join("")).unwrap();
        let joined = text.join("");
        prop_assert_eq!(free.matches(&joined), letters(pattern.join("").as_bytes(), joined.as_bytes()));
    }

    #[test]
    fn the_index_finds_what_the_patterns_match(
        patterns in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![4 => "[ab]", 1 => Just("*".to_owned()), 2 => Just("**".to_owned()), 1 => "[ab]\\*"],
                1..5,
            ),
            1..12,
        ),
        text in prop::collection::vec("[ab]{0,2}", 1..6),
    ) {
        let globs: Vec<Glob> =
            patterns.iter().map(|segments| Glob::path(&format!("/{}", segments.join("/"))).unwrap()).collect();
        let mut index = PathIndex::default();
        globs.iter().enumerate().for_each(|(at, glob)| index.add(glob, at));
        let path = format!("/{}", text.join("/"));
        let mut found = Vec::new();
        index.find(&path, &mut |rule| { found.push(rule); false });
        found.sort_unstable();
        let expected: Vec<usize> = (0..globs.len()).filter(|at| globs[*at].matches(&path)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn patterns_that_share_a_text_are_said_to_overlap(
        one in prop::collection::vec(prop_oneof!["[ab]", Just("*".to_owned()), Just("**".to_owned()), "a\\*"], 1..4),
        two in prop::collection::vec(prop_oneof!["[ab]", Just("*".to_owned()), Just("**".to_owned()), "\\*b"], 1..4),
        text in prop::collection::vec("[ab]{1,2}", 1..5),
    ) {
        let of = |segments: &[String]| Glob::path(&format!("/{}", segments.join("/"))).unwrap();
        let (one, two, text) = (of(&one), of(&two), format!("/{}", text.join("/")));
        if one.matches(&text) && two.matches(&text) {
            prop_assert!(one.may_overlap(&two) && two.may_overlap(&one), "{} {} {}", one, two, text);
        }
    }
}
