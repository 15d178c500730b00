-- From format 1 to format 2: claims that do not answer are passed over (schema.sql says what the columns mean).
--
-- It only adds, and every column has a default, so programs that know format 1 go on using the file at the same
-- time. What they leave at the default reads as: this place is of a program that does not say when it was heard.

ALTER TABLE resource ADD COLUMN silence_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE resource ADD COLUMN silent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE place ADD COLUMN heard INTEGER NOT NULL DEFAULT 0;
ALTER TABLE place ADD COLUMN called INTEGER NOT NULL DEFAULT 0;
ALTER TABLE place ADD COLUMN silent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE place ADD COLUMN client INTEGER NOT NULL DEFAULT 0;
ALTER TABLE place ADD COLUMN client_lock INTEGER NOT NULL DEFAULT 0;
CREATE INDEX place_silent ON place (resource, silent, arrival);
