-- The end of acquire_plain.lua for several claims: decides one after the other, and adds the id of the request, as
-- request_id.lua does for one.
--
-- Later claims on a resource where one was not plain are not plain either, because they must not overtake it. pcall: an
-- error in one claim must not fail the others; acquire.lua finds it again and explains it.

local replies, not_plain, is_decided = {}, {}, {}
for i = 1, #KEYS / 4 do
  local owner_key, answer = KEYS[4 * i - 3], 0
  if not not_plain[owner_key] then
    number = i
    if is_decided[owner_key] then
      -- An earlier claim of this call may have written these keys.
      local again = call('MGET', owner_key, KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i])
      for offset = 1, 4 do values[4 * i - 4 + offset] = again[offset] end
    end
    is_decided[owner_key] = true
    local succeeded, found = pcall(reply)
    if succeeded then answer = found end
  end
  if answer == 0 then not_plain[owner_key] = true end
  replies[i] = answer
end
replies[#replies + 1] = ARGV[#ARGV]
return replies
