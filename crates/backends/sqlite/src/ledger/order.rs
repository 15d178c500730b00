//! The verb `order`, with its audit record.

use leasehold_core::{
    CommandOutcome, Error, ErrorKind, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest,
};
use rusqlite::{Params, params};

use super::{Entry, Ledger, NEVER, Step, token};
use crate::sql;

/// Audit records that are kept.
const AUDIT_MAX: i64 = 10_000;

/// The grant that an order means.
struct Meant {
    owner: OwnerToken,
    ends: i64,
}

impl Ledger<'_> {
    pub(crate) fn order(&mut self, order: &OperatorCommand) -> Step<leasehold_core::Result<CommandOutcome>> {
        if order.by.len() > OperatorCommand::TEXT_MAX || order.why.len() > OperatorCommand::TEXT_MAX {
            let message = format!("an order's words have at most {} bytes each", OperatorCommand::TEXT_MAX);
            return Ok(Err(Error::new(ErrorKind::Limit, message)));
        }
        let mut entry = self.open(&order.resource)?;
        let answer = self.obey(&mut entry, order)?;
        self.record(order, answer == CommandOutcome::Done)?;
        self.close(&entry)?;
        Ok(Ok(answer))
    }

    fn obey(&mut self, entry: &mut Entry<'_>, order: &OperatorCommand) -> Step<CommandOutcome> {
        let newest = self.meant(sql::seat::newest, [entry.id])?;
        let not_that_one = CommandOutcome::HolderChanged { token: newest.as_ref().map(|(token, _)| *token) };
        let meant = match order.token {
            None => newest,
            Some(token) => match self.meant(sql::seat::of_token, (entry.id, token.as_i64()))? {
                None => return Ok(not_that_one),
                that => that,
            },
        };
        match (order.action, meant) {
            (OperatorAction::Pause { lasting }, _) => {
                self.establish(entry)?;
                entry.paused_until = self.after(lasting).max(1);
                entry.paused_for = super::after(0, lasting);
                entry.paused_wall = i64::try_from(self.wall.after(lasting).as_micros()).unwrap_or(NEVER);
                entry.ends_at(entry.paused_until);
            }
            (OperatorAction::Resume, _) => entry.resume(),
            (OperatorAction::Resize { capacity }, _) if entry.is_there() => entry.capacity = capacity.get(),
            (OperatorAction::Ask { within }, Some((_, Meant { owner, .. }))) => {
                let (until, by, why) = (self.after(within).max(1), &order.by, &order.why);
                self.execute(sql::seat::ask, params![entry.id, owner.to_bytes(), until, by, why])?;
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some((_, Meant { owner, .. }))) => {
                self.execute(sql::seat::let_run_out, (entry.id, owner.to_bytes()))?;
            }
            (OperatorAction::Evict(Eviction::Now), Some((_, meant))) => self.evict(entry, &meant)?,
            _ => return Ok(not_that_one),
        }
        entry.version += 1;
        Ok(CommandOutcome::Done)
    }

    fn evict(&mut self, entry: &mut Entry<'_>, meant: &Meant) -> Step<()> {
        let keep = ReleaseRequest::tombstone_ttl(self.until(meant.ends));
        let weight = self.one(sql::seat::evict, (entry.id, meant.owner.to_bytes()), |row| row.get(0))?;
        weight.into_iter().for_each(|weight| entry.stand_up(weight));
        self.tombstone(entry, meant.owner, keep, GoneReason::Evicted)
    }

    fn meant(&self, sql: &'static str, params: impl Params) -> Step<Option<(FencingToken, Meant)>> {
        let mut statement = self.statement(sql)?;
        let mut rows = statement.query(params)?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let meant = Meant { owner: OwnerToken::from_bytes(row.get(1)?), ends: row.get(2)? };
        Ok(Some((token(row.get(0)?)?, meant)))
    }

    fn record(&mut self, order: &OperatorCommand, done: bool) -> Step<()> {
        let at = i64::try_from(self.wall.as_micros()).unwrap_or(NEVER);
        let (key, command) = (order.resource.key(), order.action.as_str());
        let token = order.token.map_or(0, FencingToken::as_i64);
        let written = params![at, key, command, token, order.by, order.why, done];
        let sequence = self.one(sql::audit::insert, written, |row| row.get::<_, i64>(0))?;
        self.execute(sql::audit::prune, [sequence.unwrap_or(0) - AUDIT_MAX])?;
        Ok(())
    }
}
