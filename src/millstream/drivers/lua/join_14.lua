-- Let the group exist in every stream of the queue.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- Returns how many groups had to be made
--
-- Atomic because a group that is made anew in a paused queue must not give out a job in between.
--@include _queue
--@include _join
return join()
