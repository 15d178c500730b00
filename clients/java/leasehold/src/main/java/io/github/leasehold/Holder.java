package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;

/**
 * Somebody who holds a resource.
 *
 * @param host the host, as the process says
 * @param pid the process id there
 * @param label the purpose, as the process says
 * @param subject who the server took it for, by its token or certificate
 * @param token the fencing token of its grant; of a shared grant, its number
 * @param weight its share of the capacity
 * @param heldFor the time since its grant
 * @param remaining the time until it expires, unless it is renewed
 * @param note the note that it wrote
 * @param evicting whether an operator has evicted it at its expiry
 * @param kept whether it was released and the resource stays closed for a while: then nobody holds it
 */
public record Holder(
        String host,
        int pid,
        String label,
        Optional<String> subject,
        long token,
        int weight,
        Duration heldFor,
        Duration remaining,
        Optional<Note> note,
        boolean evicting,
        boolean kept) {

    static Holder read(Doc doc) {
        Doc who = doc.optDoc("holder").orElseThrow(() -> new Doc.DocException("a holder is missing"));
        return new Holder(
                who.text("host"),
                who.whole("pid"),
                who.optText("label").orElse(""),
                who.optText("subject"),
                doc.optToken("token").orElse(0),
                doc.whole("weight"),
                doc.millis("held_for_ms"),
                doc.millis("remaining_ms"),
                doc.note().map(Note::of),
                doc.flag("evicting"),
                doc.flag("kept"));
    }
}
