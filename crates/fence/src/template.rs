//! Templates for the resource of a row: `order/{id}`, `{tenant}:order/{region}-{id}`.

use std::{fmt, str::FromStr};

use leasehold_core::{Error, ErrorKind, Resource, Result};

/// A template for the resource of a row: the name of a resource with columns of the row in braces.
///
/// A column can be the namespace, and can be anywhere in the id. The kind is fixed, because it is a metric label. Without any
/// column, the whole table is one resource. The result must be the resource that your program acquires the lease for.
///
/// ```
/// use leasehold_fence::Template;
///
/// let template: Template = "{tenant}:order/{region}-{id}".parse()?;
/// assert_eq!(template.columns().collect::<Vec<_>>(), ["tenant", "region", "id"]);
/// assert!("order/{id".parse::<Template>().is_err());
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<TemplatePart>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    Text(String),
    Column(String),
}

impl Template {
    /// The columns in the template, in their order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Column(name) => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }

    pub(crate) fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    fn bad(&self, why: impl fmt::Display) -> Error {
        let message = format!("{:?} is not a template for the resource of a row: {why}", self.text);
        Error::new(ErrorKind::Invalid, message)
    }

    fn split(text: &str) -> Result<Vec<TemplatePart>, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, after) = (&rest[..open], &rest[open + 1..]);
            let close = after.find('}').ok_or("a brace is not closed")?;
            let name = &after[..close];
            if name.is_empty() || name.contains('{') {
                return Err("write the name of a column in the braces, as in order/{id}".to_owned());
            }
            if before.contains('}') {
                return Err("a brace is not opened".to_owned());
            }
            if before.is_empty() && matches!(parts.last(), Some(TemplatePart::Column(_))) {
                return Err("two columns need a separator between them: otherwise 1 and 23 would be the same as 12 and 3".to_owned());
            }
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.to_owned()));
            }
            parts.push(TemplatePart::Column(name.to_owned()));
            rest = &after[close + 1..];
        }
        if rest.contains('}') {
            return Err("a brace is not opened".to_owned());
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.to_owned()));
        }
        Ok(parts)
    }
}

impl FromStr for Template {
    type Err = Error;
    fn from_str(text: &str) -> Result<Template> {
        let mut template = Template { text: text.to_owned(), parts: Vec::new() };
        template.parts = Template::split(text).map_err(|why| template.bad(why))?;
        // With a letter in place of each column it must be a resource, and the kind must contain no column.
        let sample: String = template
            .parts
            .iter()
            .map(|part| match part {
                TemplatePart::Text(text) => text.as_str(),
                TemplatePart::Column(_) => "x",
            })
            .collect();
        let resource: Resource = sample.parse().map_err(|error| template.bad(error))?;
        let names = text.split('/').next().unwrap_or_default();
        let kind = names.rsplit(':').next().unwrap_or_default();
        let namespace = names.strip_suffix(kind).and_then(|names| names.strip_suffix(':'));
        if kind != resource.kind() {
            return Err(template.bad("the kind must be fixed, without a column, as in order/{id}"));
        }
        let one_column = |name: &str| name.rfind('{') == Some(0) && name.ends_with('}');
        if namespace.is_some_and(|name| name.contains('{') && !one_column(name)) {
            return Err(template.bad("the namespace must be fixed or one column"));
        }
        Ok(template)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_and_the_id_can_have_columns() {
        let columns =
            |text: &str| text.parse::<Template>().unwrap().columns().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(columns("order/{id}"), ["id"]);
        assert_eq!(columns("acme:order/{id}"), ["id"]);
        assert_eq!(columns("{tenant}:order/{Odd \"name\"}/{id}"), ["tenant", "Odd \"name\"", "id"]);
        assert_eq!(columns("settings/all"), [""; 0]);
    }

    #[test]
    fn bad_templates_are_refused_with_the_reason() {
        let table = [
            ("", "kind/id"),
            ("orders", "kind/id"),
            ("order/", "1 to 256"),
            ("Order/{id}", "only a-z"),
            ("order/{id", "not closed"),
            ("order/id}", "not opened"),
            ("order/}{id}", "not opened"),
            ("order/{}", "name of a column"),
            ("order/{a{b}}", "name of a column"),
            ("order/{a}{b}", "between them"),
            ("{kind}/{id}", "the kind must be fixed"),
            ("x{kind}/{id}", "the kind must be fixed"),
            ("a{b}:order/{id}", "the namespace"),
            ("{a}-{b}:order/{id}", "the namespace"),
            ("order/a\n{id}", "control character"),
        ];
        for (text, reason) in table {
            let error = text.parse::<Template>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
