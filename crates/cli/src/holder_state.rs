//! Whether a holder still renews its lease: [`HeldBy::state`].

use leasehold::HeldBy;
pub(crate) use leasehold::HolderState;

/// The state of this holder, where it can be told.
pub(crate) fn holder_state(by: &HeldBy) -> Option<HolderState> {
    by.state()
}
