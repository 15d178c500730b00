//! Nothing: the manifest is what is tested.
