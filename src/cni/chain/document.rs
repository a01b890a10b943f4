//! A network configuration as text. It is read well enough to know what a runtime makes of it, and changed by cutting
//! and inserting, so that whatever is not ours keeps its bytes.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::PLUGIN_TYPE;
use super::decoding::{self, is_key};

/// The key of a configuration list under which a copy made here says what it is a copy of. Runtimes pass over keys that
/// they do not know.
const OWN_KEY: &str = "openshell";

/// Why nothing is chained onto a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// No runtime loads it, so the next file counts. (containerd refuses to start any pod while it is there.)
    Unloadable(String),
    /// A runtime may load it, so no later file counts, and it cannot be chained onto.
    Unchainable(String),
}

use Unfit::{Unchainable, Unloadable};

impl Unfit {
    /// Why.
    pub fn why(&self) -> &str {
        match self {
            Unloadable(why) | Unchainable(why) => why,
        }
    }
}

/// A configuration list: `.conflist`.
#[derive(Debug)]
pub(super) struct List<'t> {
    text: &'t str,
    /// The network's name, under which runtimes look for a directory with more plugins.
    pub name: String,
    /// Its plugins; none where they all lie in that directory.
    pub plugins: Vec<Plugin<'t>>,
    /// Whether that directory is not looked at.
    pub inlined_only: bool,
    /// Of which file it is a copy made here.
    pub copy_of: Option<String>,
}

/// One plugin of a list.
#[derive(Debug)]
pub(super) struct Plugin<'t> {
    /// Which program it calls.
    pub kind: String,
    /// Its own text.
    pub raw: &'t str,
    span: Range<usize>,
}

/// A single plugin: `.conf` or `.json`.
#[derive(Debug)]
pub(super) struct Single<'t> {
    name: &'t str,
    version: &'t str,
    raw: &'t str,
}

impl<'t> List<'t> {
    /// Reads a list and judges it; `versions` are those of the specification that our plugin speaks.
    pub fn read(bytes: &'t [u8], versions: &[&str]) -> Result<Self, Unfit> {
        let list = Self::find(bytes)?;
        let top = Object::read(list.text)?;
        chainable_version(&top, versions)?;
        if !list.plugins.is_empty() && list.plugins.iter().all(Plugin::is_ours) {
            return Err(Unchainable("its only plugin is ours; whatever made the network is no longer in it".into()));
        }
        Ok(list)
    }

    /// Reads a list without judging whether our plugin can work in it.
    pub fn find(bytes: &'t [u8]) -> Result<Self, Unfit> {
        let text = syntax(bytes)?;
        let top = Object::read(text)?;
        for key in ["name", "cniVersion", "cniVersions", "disableCheck", "plugins", "loadOnlyInlinedPlugins"] {
            if top.all(key).count() > 1 {
                return Err(Unchainable(format!(
                    "its key {key} is there more than once, and readers differ about which counts"
                )));
            }
        }
        let name = match top.one("name") {
            Some(raw) => text_of("name", raw)?,
            None => return Err(Unloadable("it has no name".into())),
        };
        if name.is_empty() {
            return Err(Unchainable("its name is empty".into()));
        }
        // Later versions of libcni take a truth in quotes, too.
        match top.one("disableCheck") {
            None | Some("true" | "false") => {}
            Some(raw) if raw.starts_with('"') => {
                return Err(Unchainable("its disableCheck is in quotes, and readers differ about that".into()));
            }
            Some(_) => return Err(Unloadable("its disableCheck is neither true nor false".into())),
        }
        let inlined_only = match top.one("loadOnlyInlinedPlugins") {
            None => false,
            // libcni takes either.
            Some(value) => match value.trim_matches('"').to_ascii_lowercase().as_str() {
                "true" => true,
                "false" => false,
                _ => return Err(Unchainable("its loadOnlyInlinedPlugins is neither true nor false".into())),
            },
        };
        let copy_of = top.one(OWN_KEY).and_then(|raw| serde_json::from_str::<Own>(raw).ok()).map(|own| own.copy_of);
        let mut list = Self { text, name, plugins: Vec::new(), inlined_only, copy_of };
        match top.one("plugins") {
            None if inlined_only => return Err(Unloadable("it has no plugins".into())),
            // Since libcni 1.3 they may all lie in the directory.
            None => return Ok(list),
            Some(raw) => {
                let elements: Vec<&RawValue> =
                    serde_json::from_str(raw).map_err(|_| Unloadable("its plugins are no array".into()))?;
                for element in elements {
                    let raw = element.get();
                    let start = raw.as_ptr().addr() - text.as_ptr().addr();
                    let kind = plugin_kind(raw, &Object::read(raw)?)?;
                    list.plugins.push(Plugin { kind, raw, span: start..start + raw.len() });
                }
            }
        }
        if list.plugins.is_empty() {
            return Err(Unloadable("its plugins are an empty array".into()));
        }
        Ok(list)
    }

    /// What our entry is like, where it is not as `expected`.
    pub fn difference(&self, expected: &Value) -> Result<(), Difference> {
        let mut ours = self.plugins.iter().enumerate().filter(|(_, plugin)| plugin.is_ours());
        let Some((index, entry)) = ours.next() else { return Err(Difference::Absent) };
        if ours.next().is_some() {
            return Err(Difference::Altered("it is there more than once".into()));
        }
        if index == 0 {
            return Err(Difference::Altered("it comes first, before there is a network".into()));
        }
        // What others append after it is theirs to decide: the fence holds for the whole namespace, and two installers
        // that both insist on the end would never rest.
        differs(entry.raw, expected).map_or(Ok(()), |what| Err(Difference::Altered(what)))
    }

    /// The text with `entry` as last plugin, and without any other entry of ours.
    pub fn with(&self, entry: &str) -> String {
        let Some(last) = self.plugins.iter().rposition(|plugin| !plugin.is_ours()) else { return self.text.to_owned() };
        let end = self.plugins[last].span.end;
        let start = self.plugins[last].span.start;
        // In the style of the file: what stands before its last plugin stands before ours too.
        let before = &self.text[..start];
        let space = &before[before.trim_end_matches(is_space).len()..];
        let mut cuts = self.cuts();
        cuts.push((end..end, format!(",{space}{entry}")));
        self.cut(cuts)
    }

    /// The text without any entry of ours.
    pub fn without(&self) -> String {
        self.cut(self.cuts())
    }

    /// Whether any entry is ours.
    pub fn names_us(&self) -> bool {
        self.plugins.iter().any(Plugin::is_ours)
    }

    /// Each of our entries with the comma that goes with it: the one before, or for those that come first the one
    /// after.
    fn cuts(&self) -> Vec<(Range<usize>, String)> {
        let first_kept = self.plugins.iter().position(|plugin| !plugin.is_ours()).unwrap_or(self.plugins.len());
        let mut cuts = Vec::new();
        if let (Some(first), Some(kept)) = (self.plugins.first(), self.plugins.get(first_kept))
            && first_kept > 0
        {
            cuts.push((first.span.start..kept.span.start, String::new()));
        }
        for pair in self.plugins.get(first_kept..).unwrap_or_default().windows(2) {
            if pair[1].is_ours() {
                cuts.push((pair[0].span.end..pair[1].span.end, String::new()));
            }
        }
        cuts
    }

    fn cut(&self, mut cuts: Vec<(Range<usize>, String)>) -> String {
        // An insertion comes before a cut at the same place, which starts where the insertion's plugin ends.
        cuts.sort_by_key(|(range, _)| (range.start, range.end));
        let mut text = String::with_capacity(self.text.len() + 512);
        let mut done = 0;
        for (range, put) in cuts {
            text.push_str(&self.text[done..range.start]);
            text.push_str(&put);
            done = range.end;
        }
        text.push_str(&self.text[done..]);
        text
    }
}

impl Plugin<'_> {
    /// Whether it calls our program.
    pub fn is_ours(&self) -> bool {
        self.kind == PLUGIN_TYPE
    }
}

/// How our entry in a list is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// There is none.
    Absent,
    /// It is different.
    Altered(String),
}

impl<'t> Single<'t> {
    /// Reads a single plugin and judges it.
    pub fn read(bytes: &'t [u8], versions: &[&str]) -> Result<Self, Unfit> {
        let raw = syntax(bytes)?.trim_matches(is_space);
        let top = Object::read(raw)?;
        let kind = plugin_kind(raw, &top)?;
        for name in ["name", "cniVersion"] {
            let mut written = top.0.iter().filter(|(key, _)| is_key(key, name));
            if written.next().is_some_and(|(key, _)| key != name) || written.next().is_some() {
                return Err(Unchainable(format!(
                    "its {name} is written twice or in capitals, and readers differ about that"
                )));
            }
        }
        if kind == PLUGIN_TYPE {
            return Err(Unchainable("it calls our plugin alone, which makes no network".into()));
        }
        if kind.starts_with("multus") {
            return Err(Unchainable(
                "it is multus, which keeps its own file as it wants it: chain by multus' directory instead".into(),
            ));
        }
        let Some(name) = top.one("name").filter(|raw| string(raw).is_some_and(|name| !name.is_empty())) else {
            return Err(Unchainable("it has no name".into()));
        };
        chainable_version(&top, versions)?;
        let version = top.one("cniVersion").ok_or_else(|| Unchainable("it has no cniVersion".into()))?;
        Ok(Self { name, version, raw })
    }

    /// A list with this plugin, byte for byte, and `entry` after it.
    pub fn copy(&self, file: &str, entry: &str) -> String {
        let Self { name, version, raw } = self;
        let own = serde_json::json!({ "copyOf": file });
        format!(
            "{{\n  \"cniVersion\": {version},\n  \"name\": {name},\n  \"{OWN_KEY}\": {own},\n  \"plugins\": [\n\
             {raw},\n{entry}\n  ]\n}}\n"
        )
    }
}

/// What is not as expected in the text of a plugin. The order of keys and the spelling of values are nobody's concern.
pub(super) fn differs(raw: &str, expected: &Value) -> Option<String> {
    let found: Value = match serde_json::from_str(raw) {
        Ok(found) => found,
        Err(error) => return Some(format!("it cannot be read: {error}")),
    };
    if found == *expected {
        return None;
    }
    let (Value::Object(found), Value::Object(expected)) = (&found, expected) else {
        return Some("it is no object".into());
    };
    let keys: Vec<&str> = found
        .keys()
        .chain(expected.keys().filter(|key| !found.contains_key(*key)))
        .filter(|key| found.get(*key) != expected.get(*key))
        .map(String::as_str)
        .collect();
    Some(format!("not as expected: {}", keys.join(", ")))
}

/// What a key of ours in a list says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Own {
    copy_of: String,
}

/// The text, if it is JSON.
fn syntax(bytes: &[u8]) -> Result<&str, Unfit> {
    if bytes.is_empty() {
        return Err(Unloadable("it is empty, as after a loss of power".into()));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        // Runtimes replace such bytes instead of refusing them.
        Err(_) => String::from_utf8_lossy(bytes),
    };
    if let Err(error) = serde_json::from_str::<&RawValue>(&text) {
        return Err(Unloadable(format!("it is no JSON: {error}")));
    }
    if let Some(why) = decoding::refusal(&text) {
        return Err(Unloadable(why));
    }
    match text {
        Cow::Borrowed(text) => Ok(text),
        Cow::Owned(_) => Err(Unchainable("it is not UTF-8".into())),
    }
}

/// The version that a runtime hands to plugins has to be one that ours speaks: a runtime calls no plugin of a list, and
/// starts no pod, where one of them refuses it.
fn chainable_version(top: &Object<'_>, versions: &[&str]) -> Result<(), Unfit> {
    let mut named = Vec::new();
    if let Some(raw) = top.one("cniVersion") {
        named.push(text_of("cniVersion", raw)?);
    }
    if let Some(raw) = top.one("cniVersions") {
        let several: Vec<String> =
            serde_json::from_str(raw).map_err(|_| Unchainable("its cniVersions are no array of strings".into()))?;
        named.extend(several);
    }
    if named.is_empty() {
        return Err(Unchainable("it names no cniVersion, which means 0.1.0, where nothing can be chained".into()));
    }
    // Which of several counts depends on what the runtime knows.
    match named.iter().find(|version| !versions.contains(&version.as_str())) {
        Some(version) => {
            let known = versions.join(", ");
            Err(Unchainable(format!("its cniVersion {version:?} is none that our plugin speaks ({known})")))
        }
        None => Ok(()),
    }
}

/// Which program a plugin calls, where every reader agrees. libcni decodes plugins into a struct, where keys match in
/// any case and the last of several counts.
fn plugin_kind(raw: &str, plugin: &Object<'_>) -> Result<String, Unfit> {
    if let Some(why) = decoding::PLUGIN.misfit(raw) {
        return Err(Unloadable(format!("of a plugin in it {why}")));
    }
    let mut types = plugin.0.iter().filter(|(key, _)| is_key(key, "type"));
    let Some((key, raw)) = types.next() else { return Err(Unloadable("a plugin in it has no type".into())) };
    if types.next().is_some() || key != "type" {
        return Err(Unchainable(
            "a plugin's type in it is written twice or in capitals, and readers differ about that".into(),
        ));
    }
    match raw {
        &"null" | &"\"\"" => Err(Unloadable("a plugin in it has no type".into())),
        raw => text_of("plugin's type", raw),
    }
}

/// The text of a string. Runtimes put another character where an escape stands for none.
fn text_of(what: &str, raw: &str) -> Result<String, Unfit> {
    match string(raw) {
        Some(text) => Ok(text),
        None if raw.starts_with('"') => Err(Unchainable(format!("its {what} is no text"))),
        None => Err(Unloadable(format!("its {what} is no string"))),
    }
}

fn string(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

/// White space between the tokens of JSON (RFC 8259, section 2).
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// The members of an object as they stand, repeated ones too.
pub(super) struct Object<'t>(pub Vec<(String, &'t str)>);

impl<'t> Object<'t> {
    pub fn read(text: &'t str) -> Result<Self, Unfit> {
        if !text.trim_start_matches(is_space).starts_with('{') {
            return Err(Unloadable("there is no object where one belongs".into()));
        }
        // The text is JSON, so what fails here is a key that is no text.
        serde_json::from_str(text).map_err(|error| Unchainable(format!("its keys cannot be read: {error}")))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'t str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, raw)| *raw)
    }

    fn one(&self, name: &str) -> Option<&'t str> {
        self.all(name).next()
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key()? {
                    members.push((key, map.next_value::<&'de RawValue>()?.get()));
                }
                Ok(Object(members))
            }
        }

        deserializer.deserialize_map(Members)
    }
}
