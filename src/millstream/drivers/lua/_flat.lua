-- Entry id and body of each entry in turn, and which of them name the job's id: a list of pairs of lists, as the
-- server gives it, takes the server and the client twice the time. An entry that is no job of ours has its fields
-- as JSON in place of a body.
-- Returns that list, and {position, id, …} of those that have the id as a second field.
local function flat(entries)
  local found, at, named = {}, 0, {}
  for i = 1, #entries do
    local entry = entries[i]
    local fields = entry[2]
    found[at + 1] = entry[1]
    if fields[1] == 'job' and (#fields == 2 or (#fields == 4 and fields[3] == 'id')) then
      found[at + 2] = fields[2]
      if #fields == 4 then
        named[#named + 1] = i
        named[#named + 1] = fields[4]
      end
    else
      local texts = {}
      for j = 1, #fields, 2 do texts[fields[j]] = fields[j + 1] end
      found[at + 2] = cjson.encode(texts)
    end
    at = at + 2
  end
  return found, named
end
