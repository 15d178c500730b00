package io.github.leasehold;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.regex.Pattern;

/** Names of resources, and owner tokens. */
final class Names {
    private static final Pattern KIND = Pattern.compile("(?:[a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}");
    private static final String PLAIN = "-._:@+=,";
    private static final int ID_MAX = 256;
    private static final SecureRandom RANDOM = new SecureRandom();

    private Names() {}

    /**
     * The key of {@code [namespace:]kind/id}, as the server writes it: the id is percent-encoded. Several leases are acquired in the
     * order of their keys, which are ASCII: the order of strings is that of bytes.
     */
    static String keyOf(String resource) {
        int slash = resource.indexOf('/');
        if (slash < 0) {
            throw invalid(resource, "write kind/id, as in report/42");
        }
        String kind = resource.substring(0, slash);
        if (!KIND.matcher(kind).matches()) {
            throw invalid(resource, "before the slash, only a-z, 0-9, '.', '_' and '-' are allowed");
        }
        String id = resource.substring(slash + 1);
        byte[] bytes = utf8(id, "its id");
        if (bytes.length < 1 || bytes.length > ID_MAX) {
            throw invalid(resource, "an id has 1 to " + ID_MAX + " bytes, this one has " + bytes.length);
        }
        if (id.chars().anyMatch(Character::isISOControl)) {
            throw invalid(resource, "its id has a control character");
        }
        return kind + "/" + encode(bytes);
    }

    /** The text as UTF-8. */
    static byte[] utf8(String text, String what) {
        try {
            // Unlike String.getBytes, an encoder refuses half of a surrogate pair.
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] bytes = new byte[encoded.remaining()];
            encoded.get(bytes);
            return bytes;
        } catch (CharacterCodingException error) {
            throw new InvalidException(what + " is not valid Unicode");
        }
    }

    private static String encode(byte[] id) {
        StringBuilder out = new StringBuilder(id.length + 16);
        for (byte b : id) {
            char c = (char) (b & 0xff);
            boolean alphanumeric = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9';
            if (alphanumeric || PLAIN.indexOf(c) >= 0) {
                out.append(c);
            } else {
                out.append('%').append(HexFormat.of().withUpperCase().toHexDigits(b));
            }
        }
        return out.toString();
    }

    private static InvalidException invalid(String resource, String why) {
        String shown = resource.length() <= 80 ? resource : resource.substring(0, 80) + "…";
        return new InvalidException("\"" + Json.escape(shown) + "\" is not a valid resource name: " + why);
    }

    /** A fresh owner token: the secret that renews and releases one claim. */
    static String newOwner() {
        return randomHex(16);
    }

    static String randomHex(int bytes) {
        byte[] random = new byte[bytes];
        RANDOM.nextBytes(random);
        return HexFormat.of().formatHex(random);
    }

    /** What stands for an owner token in answers. */
    static String ownerHash(String owner) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(owner.getBytes(StandardCharsets.US_ASCII));
            return HexFormat.of().formatHex(digest, 0, 16);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java platform has SHA-256", error);
        }
    }
}
