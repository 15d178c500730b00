//! The verb `order`: an operator's command, and its record in the audit trail.
//!
//! 1. Find the holder that the command means: the holder with the token of the command, or the newest holder.
//! 2. Do what the command says. If it needs a holder and there is none, or the token is not that of a holder,
//!    change nothing and return `HolderChanged` with the newest token.
//! 3. Write the audit record in both cases, in the same transaction.

use leasehold_core::{
    CommandOutcome, Error, ErrorKind, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest, Result,
};
use rusqlite::{Params, params};

use crate::{
    resource_row::ResourceRow,
    sql,
    tables::{self, StoreResult, Tables, read_token, stored_wall},
    writer::WriteVerb,
};

/// The number of audit records that are kept.
const AUDIT_MAX: i64 = 10_000;

/// The verb, for the writer.
pub(crate) struct Order(pub(crate) OperatorCommand);

impl WriteVerb for Order {
    type Reply = Result<CommandOutcome>;

    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply> {
        tables.order(&self.0)
    }
}

/// The holder that a command is about.
struct TargetHolder {
    token: FencingToken,
    owner: OwnerToken,
    ends: i64,
}

impl Tables<'_> {
    fn order(&mut self, command: &OperatorCommand) -> StoreResult<Result<CommandOutcome>> {
        for (field, text) in [("by", &command.by), ("why", &command.why)] {
            let (length, most) = (text.len(), OperatorCommand::TEXT_MAX);
            if length > most {
                let message = format!(
                    "the text '{field}' of a command has at most {most} bytes, this one has {length}"
                );
                return Ok(Err(Error::new(ErrorKind::Limit, message)));
            }
        }
        let mut row = self.load(&command.resource)?;
        self.pass_over_silent(&mut row, None)?;
        let outcome = self.run_command(&mut row, command)?;
        self.call(&mut row)?;
        self.write_audit_record(command, outcome == CommandOutcome::Done)?;
        self.save(&row)?;
        Ok(Ok(outcome))
    }

    fn run_command(
        &mut self,
        row: &mut ResourceRow<'_>,
        command: &OperatorCommand,
    ) -> StoreResult<CommandOutcome> {
        let newest = self.find_target(sql::holder::newest, [row.id])?;
        let holder_changed =
            CommandOutcome::HolderChanged { token: newest.as_ref().map(|newest| newest.token) };
        let target = match command.token {
            None => newest,
            Some(token) => match self.find_target(sql::holder::find_by_token, (row.id, token.as_i64()))? {
                None => return Ok(holder_changed),
                found => found,
            },
        };
        match (command.action, target) {
            (OperatorAction::Pause { lasting }, _) => {
                self.ensure_row(row)?;
                // 0 means "not paused" in the file.
                row.paused_until = self.after(lasting).max(1);
                row.paused_for = tables::after(0, lasting);
                row.paused_wall = stored_wall(self.wall.after(lasting));
                row.ends_at(row.paused_until);
            }
            (OperatorAction::Resume, _) => row.resume(),
            (OperatorAction::Resize { capacity }, _) if row.is_in_use() => row.capacity = capacity.get(),
            (OperatorAction::Ask { within }, Some(target)) => {
                let (until, by, why) = (self.after(within).max(1), &command.by, &command.why);
                let request = params![row.id, target.owner.to_bytes(), until, by, why];
                self.execute(sql::holder::ask_to_finish, request)?;
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some(target)) => {
                self.execute(sql::holder::mark_evicting, (row.id, target.owner.to_bytes()))?;
            }
            (OperatorAction::Evict(Eviction::Now), Some(target)) => self.evict(row, &target)?,
            _ => return Ok(holder_changed),
        }
        row.version += 1;
        Ok(CommandOutcome::Done)
    }

    fn evict(&mut self, row: &mut ResourceRow<'_>, target: &TargetHolder) -> StoreResult<()> {
        let keep = ReleaseRequest::tombstone_ttl(self.until(target.ends));
        let key = (row.id, target.owner.to_bytes());
        let weight = self.query_one(sql::holder::evict, key, |columns| columns.get(0))?;
        weight.into_iter().for_each(|weight| row.subtract_holder(weight));
        self.tombstone(row, target.owner, keep, GoneReason::Evicted)
    }

    fn find_target(&self, sql: &'static str, params: impl Params) -> StoreResult<Option<TargetHolder>> {
        let mut statement = self.statement(sql)?;
        let mut rows = statement.query(params)?;
        let Some(columns) = rows.next()? else { return Ok(None) };
        let token = read_token("seat.token", columns.get(0)?)?;
        Ok(Some(TargetHolder {
            token,
            owner: OwnerToken::from_bytes(columns.get(1)?),
            ends: columns.get(2)?,
        }))
    }

    fn write_audit_record(&mut self, command: &OperatorCommand, done: bool) -> StoreResult<()> {
        let at = stored_wall(self.wall);
        let (key, action) = (command.resource.key(), command.action.as_str());
        let token = command.token.map_or(0, FencingToken::as_i64);
        let record = params![at, key, action, token, command.by, command.why, done];
        let sequence = self.query_one(sql::audit::insert, record, |columns| columns.get::<_, i64>(0))?;
        self.execute(sql::audit::prune, [sequence.unwrap_or(0) - AUDIT_MAX])?;
        Ok(())
    }
}
