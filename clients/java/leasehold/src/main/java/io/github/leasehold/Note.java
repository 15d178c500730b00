package io.github.leasehold;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;

/** What a holder says of itself to others: text, or any bytes. */
public final class Note {
    private final byte[] bytes;

    private Note(byte[] bytes) {
        this.bytes = bytes;
    }

    /**
     * A note that is text.
     *
     * @param text the text
     * @return the note
     */
    public static Note of(String text) {
        return new Note(Names.utf8(text, "a note"));
    }

    /**
     * A note of any bytes.
     *
     * @param bytes the bytes, which are copied
     * @return the note
     */
    public static Note of(byte[] bytes) {
        return new Note(bytes.clone());
    }

    /**
     * The note as text.
     *
     * @return the text, if it is UTF-8
     */
    public Optional<String> text() {
        try {
            return Optional.of(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString());
        } catch (CharacterCodingException error) {
            return Optional.empty();
        }
    }

    /**
     * The note as bytes.
     *
     * @return a copy
     */
    public byte[] bytes() {
        return bytes.clone();
    }

    /** The field of a request. */
    Map.Entry<String, String> field() {
        return text().map(text -> Map.entry("note", text))
                .orElseGet(() -> Map.entry("note_base64", Base64.getEncoder().encodeToString(bytes)));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Note note && Arrays.equals(bytes, note.bytes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(bytes);
    }

    @Override
    public String toString() {
        return text().orElseGet(() -> HexFormat.of().formatHex(bytes));
    }
}
