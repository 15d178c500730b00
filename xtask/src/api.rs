//! The public API of every published crate, pinned in a file: `crates/<name>/api.txt`.
//!
//! `cargo xtask test` compares the files with the sources, so that no change of the API goes unnoticed. After a change on
//! purpose, `cargo xtask api` writes them again; the difference then shows in the review.
//!
//! The file is the skeleton of the crate: every `pub` item without its body and documentation, by module. It is read from
//! the source, which needs no nightly compiler. That is exact because the lint `unreachable_pub` keeps `pub` away from
//! items that users cannot reach.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Fields, File, ImplItem, Item, TraitItem, Visibility, parse_quote,
    visit_mut::{self, VisitMut},
};

use crate::root;

/// The crates that are published, by folder.
pub(crate) const PUBLISHED: &[&str] = &[
    "crates/api",
    "crates/backends/etcd",
    "crates/backends/http",
    "crates/backends/postgres",
    "crates/backends/redis",
    "crates/backends/sqlite",
    "crates/backends/zookeeper",
    "crates/cli",
    "crates/core",
    "crates/fence",
    "crates/leasehold",
    "crates/patterns",
    "crates/server",
    "crates/support",
];

/// `cargo xtask api`: writes the files.
pub(crate) fn write() -> Result<(), String> {
    for folder in libraries() {
        let file = pinned(&folder);
        let text = skeleton(&folder)?;
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Compares the files with the sources.
pub(crate) fn check() -> Result<(), String> {
    let mut changed = Vec::new();
    for folder in libraries() {
        let file = pinned(&folder);
        let known = fs::read_to_string(&file).unwrap_or_default();
        let now = skeleton(&folder)?;
        if let Some((number, (was, is))) =
            lines(&known).zip(lines(&now)).enumerate().find(|(_, (was, is))| was != is)
        {
            changed.push(format!(
                "{}:{}:\n  pinned: {}\n  source: {}",
                file.display(),
                number + 1,
                was.unwrap_or("(end)"),
                is.unwrap_or("(end)")
            ));
        }
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the public API has changed. If that is on purpose: cargo xtask api, and tell users in CHANGELOG.md\n\n{}",
        changed.join("\n")
    ))
}

/// The lines of a text, and then nothing for ever: for comparing texts of different lengths.
fn lines(text: &str) -> impl Iterator<Item = Option<&str>> {
    let count = text.lines().count();
    text.lines().map(Some).chain(std::iter::repeat(None)).take(count.max(20_000))
}

fn libraries() -> impl Iterator<Item = PathBuf> {
    PUBLISHED.iter().map(|folder| root().join(folder)).filter(|folder| folder.join("src/lib.rs").exists())
}

fn pinned(folder: &Path) -> PathBuf {
    folder.join("api.txt")
}

fn skeleton(folder: &Path) -> Result<String, String> {
    let mut modules = Vec::new();
    walk(&folder.join("src/lib.rs"), &folder.join("src"), "crate", &mut modules)?;
    let types: BTreeSet<String> =
        modules.iter().flat_map(|(_, items)| items).filter_map(public_type).collect();
    let mut text = String::new();
    for (path, mut items) in modules {
        items.retain(|item| !is_impl_for_private_type(item, &types));
        if !items.is_empty() {
            let mut file = File { shebang: None, attrs: Vec::new(), items };
            Skeleton.visit_file_mut(&mut file);
            text.push_str(&format!("// {path}\n{}\n", prettyplease::unparse(&file)));
        }
    }
    Ok(text)
}

/// The name of a type that the item declares. Only public items are left by now.
fn public_type(item: &Item) -> Option<String> {
    match item {
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// Whether the item implements something for a type of this crate that users cannot name.
fn is_impl_for_private_type(item: &Item, public: &BTreeSet<String>) -> bool {
    let Item::Impl(block) = item else { return false };
    let syn::Type::Path(path) = &*block.self_ty else { return false };
    path.path.segments.last().is_some_and(|segment| !public.contains(&segment.ident.to_string()))
}

/// Adds the public items of a module file, then those of its modules.
fn walk(file: &Path, folder: &Path, path: &str, found: &mut Vec<(String, Vec<Item>)>) -> Result<(), String> {
    let source =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let mut parsed = syn::parse_file(&source).map_err(|error| format!("{}: {error}", file.display()))?;
    let modules: Vec<String> = parsed.items.iter().filter_map(module_name).collect();
    parsed.items.retain_mut(|item| !is_for_tests(attributes(item)) && keep_public(item));
    found.push((path.to_owned(), parsed.items));
    for name in modules {
        let inner = folder.join(&name);
        let flat = folder.join(format!("{name}.rs"));
        let file = if flat.exists() { flat } else { inner.join("mod.rs") };
        walk(&file, &inner, &format!("{path}::{name}"), found)?;
    }
    Ok(())
}

/// The name of a module in a file of its own that is not for tests.
fn module_name(item: &Item) -> Option<String> {
    match item {
        Item::Mod(module) if module.content.is_none() && !is_for_tests(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
        condition.is_ok_and(|condition| condition == "test" || condition == "doctest")
    })
}

/// Keeps what users see of an item; returns false if they see nothing of it.
fn keep_public(item: &mut Item) -> bool {
    let public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    match item {
        Item::Fn(item) => public(&item.vis),
        Item::Const(item) => public(&item.vis),
        Item::Static(item) => public(&item.vis),
        Item::Type(item) => public(&item.vis),
        Item::Use(item) => public(&item.vis),
        Item::Mod(item) => public(&item.vis) && item.content.is_none(),
        Item::Trait(item) => public(&item.vis),
        Item::Enum(item) => public(&item.vis),
        Item::Struct(item) => {
            keep_public_fields(&mut item.fields);
            public(&item.vis)
        }
        Item::Impl(block) if block.trait_.is_some() => {
            block.items.clear();
            true
        }
        Item::Impl(block) => {
            block.items.retain(|item| match item {
                ImplItem::Fn(item) => public(&item.vis),
                ImplItem::Const(item) => public(&item.vis),
                _ => false,
            });
            !block.items.is_empty()
        }
        _ => false,
    }
}

fn keep_public_fields(fields: &mut Fields) {
    if let Fields::Named(named) = fields {
        named.named = std::mem::take(&mut named.named)
            .into_iter()
            .filter(|field| matches!(field.vis, Visibility::Public(_)))
            .collect();
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Removes bodies, values and documentation.
struct Skeleton;

impl VisitMut for Skeleton {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        let kept = ["derive", "non_exhaustive", "must_use", "cfg", "doc"];
        attributes.retain(|attribute| {
            let documentation = attribute.path().is_ident("doc") && attribute.meta.require_list().is_err();
            kept.iter().any(|name| attribute.path().is_ident(name)) && !documentation
        });
    }

    fn visit_item_fn_mut(&mut self, item: &mut syn::ItemFn) {
        item.block = parse_quote!({});
        visit_mut::visit_item_fn_mut(self, item);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut syn::ImplItemFn) {
        item.block = parse_quote!({});
        visit_mut::visit_impl_item_fn_mut(self, item);
    }

    fn visit_trait_item_mut(&mut self, item: &mut TraitItem) {
        if let TraitItem::Fn(function) = item
            && function.default.is_some()
        {
            function.default = Some(parse_quote!({}));
        }
        visit_mut::visit_trait_item_mut(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skeleton_has_what_users_see_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("leasehold-api-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).expect("the temporary folder can be written to");
        let source = "//! Docs.\nmod inner;\nstruct Hidden;\nimpl Clone for Hidden { fn clone(&self) -> Hidden { todo!() } }\n/// A thing.\n#[derive(Debug)]\npub struct Thing { pub a: u8, b: u8 }\n\
                      impl Thing { pub fn get(&self) -> u8 { self.a } fn hidden(&self) {} }\n\
                      impl Clone for Thing { fn clone(&self) -> Thing { todo!() } }\nfn private() {}\n\
                      #[cfg(test)]\npub mod tests {}\n";
        fs::write(folder.join("src/lib.rs"), source).expect("just made");
        fs::write(folder.join("src/inner.rs"), "pub const A: u8 = 1;").expect("just made");
        let text = skeleton(&folder);
        fs::remove_dir_all(&folder).expect("just made");
        let expected = "// crate\n#[derive(Debug)]\npub struct Thing {\n    pub a: u8,\n}\nimpl Thing {\n    \
                        pub fn get(&self) -> u8 {}\n}\nimpl Clone for Thing {}\n\n// crate::inner\npub const A: u8 = 1;\n\n";
        assert_eq!(text.expect("it parses"), expected);
    }
}
