package io.github.leasehold;

import java.util.Optional;

/**
 * Who leads.
 *
 * @param token the fencing token of its grant
 * @param host the host, as the process says
 * @param pid the process id there
 * @param label the purpose, as the process says
 * @param note what it says of itself, usually its address
 */
public record Leader(long token, String host, int pid, String label, Optional<Note> note) {
    static Leader of(Holder holder) {
        return new Leader(holder.token(), holder.host(), holder.pid(), holder.label(), holder.note());
    }

    /**
     * What it says of itself, usually its address.
     *
     * @return its note, if that is text
     */
    public Optional<String> value() {
        return note.flatMap(Note::text);
    }
}
