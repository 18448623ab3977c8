"""The desk's routing rules and what customers wrote: the demo's data, invented for this project.

Each rule has two parts, a subject and a detail; its sibling shares the subject and differs in the detail, so that
each message of one is a near miss of the other. The codes follow from nothing: only someone who was told can know
them. A message stands under the rule that applies to it, so its label is right by construction.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """One code, when it applies, and messages to which it applies."""

    code: str
    condition: str
    """Completes "a message belongs here when ..."."""
    subject_words: tuple[str, ...]
    """Beginnings of words, one of which a faithful restatement of the subject has."""
    detail_words: tuple[str, ...]
    """The same for the detail that sets this rule apart from its sibling."""
    messages: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The rule as one line of an instruction."""
        return f"If {self.condition}, the code is {self.code}."


ROUTING_RULES: tuple[RoutingRule, ...] = (
    RoutingRule(
        code="K-17",
        condition="something arrived broken and it is made of glass",
        subject_words=("broke", "damag", "smash", "shatter"),
        detail_words=("glass",),
        messages=(
            "The glass vase was in pieces when I opened the box.",
            "Two of the six wine glasses arrived cracked.",
            "My new glass table top came with a corner missing, smashed in transit.",
            "I unpacked the lantern and its glass pane had shattered.",
            "The mirror you sent is broken, there is glass all over the carton.",
            "One glass shelf of the cabinet arrived with a crack right through it.",
            "The oil bottle leaked because its glass neck had snapped off on the way.",
            "I wanted to give her the glass bowl tonight, but it came out of the parcel in splinters.",
            "The wooden frame is fine, but the glass in it was broken on arrival.",
            "The glass teapot arrived without a handle, it must have hit something hard.",
        ),
    ),
    RoutingRule(
        code="R-42",
        condition="something arrived broken and it is made of wood",
        subject_words=("broke", "damag", "smash", "shatter"),
        detail_words=("wood",),
        messages=(
            "The wooden chair came with one leg snapped off.",
            "There is a long crack in the wooden chopping board, straight out of the box.",
            "My oak shelf arrived split down the middle, the wood is ruined.",
            "The wooden train for my son was broken in two when we opened it.",
            "The drawer front of the wooden dresser was smashed by your courier.",
            "I unpacked the wooden picture frame and a corner had broken away.",
            "The glass in the cabinet survived, but its wooden door arrived in pieces.",
            "The pine bench was delivered with a broken seat plank.",
            "The wooden salad spoons came broken, both handles are off.",
            "Your wooden toy box arrived with its lid cracked from end to end.",
        ),
    ),
    RoutingRule(
        code="D-08",
        condition="a delivery is late and it is meant as a gift",
        subject_words=("late", "deliver", "delay"),
        detail_words=("gift", "present", "birthday"),
        messages=(
            "The scarf should have been here on Monday and it is my mother's birthday present.",
            "Still no parcel, and the wedding gift has to be handed over on Saturday.",
            "I ordered this as a gift two weeks ago and it has not come yet.",
            "The present for my nephew is five days overdue.",
            "Where is my order? It was to be a birthday gift and the birthday was yesterday.",
            "Tracking has not moved for a week, and I need it as a farewell gift for a colleague.",
            "My package is late again, this time it is a Christmas present.",
            "I am still waiting for the puzzle that I bought as a gift for grandad.",
            "The delivery date has passed and our anniversary present is nowhere to be seen.",
            "It is not for me, it is a gift, and it was due last Thursday.",
        ),
    ),
    RoutingRule(
        code="M-63",
        condition="a delivery is late and it is medicine",
        subject_words=("late", "deliver", "delay"),
        detail_words=("medic",),
        messages=(
            "My medicine was to come on Tuesday and it is Friday now.",
            "I have two tablets left and the medicine that I ordered has not arrived.",
            "The parcel with my father's heart medicine is four days late.",
            "Still waiting for the cough medicine, the tracking page has not changed since Sunday.",
            "My order is overdue, and it holds medicine that I take every day.",
            "The delivery of the eye drops, a medicine I depend on, was due last week.",
            "Where is my parcel? The dog needs his medicine and it should be here by now.",
            "You promised the medicine in two days, that was nine days ago.",
            "The allergy medicine has been on its way for eleven days.",
            "My late order is no gift, it is medicine for my daughter.",
        ),
    ),
    RoutingRule(
        code="T-29",
        condition="someone wants their money back and paid with a voucher",
        subject_words=("money", "refund", "pay back", "paid back", "return"),
        detail_words=("voucher",),
        messages=(
            "I would like a refund for the lamp, I paid for it with a voucher.",
            "Please give me my money back, I used a gift voucher at the checkout.",
            "I returned the shoes and wait for the refund; the payment was made by voucher.",
            "How do I get the money back for an order that I paid with a voucher code?",
            "The coat does not suit me, refund me please. Payment: the voucher from my aunt.",
            "I cancelled in time and want the amount back that I paid by voucher.",
            "I did not use my card, I used a voucher, and I want it refunded.",
            "Can the price be paid back to me if I bought the book with a voucher?",
            "My voucher covered the whole order. I send it back and ask for a refund.",
            "I want my money back for the kettle, bought with the voucher from your newsletter.",
        ),
    ),
    RoutingRule(
        code="B-54",
        condition="someone wants their money back and paid in cash",
        subject_words=("money", "refund", "pay back", "paid back", "return"),
        detail_words=("cash",),
        messages=(
            "I paid cash in your shop and want a refund for the blender.",
            "Please return my money, I gave the driver cash when the parcel came.",
            "I would like to be paid back for the curtains, which I bought with cash.",
            "How does a refund work if I paid cash on delivery?",
            "The radio went back to you last week. I paid in cash, when do I get my money?",
            "I want my money back for the jacket, I paid it in cash at the counter.",
            "No card, no voucher, I paid cash. Can I have a refund for the rug?",
            "I ask for a refund of the deposit that I left in cash.",
            "The order was cancelled but the cash that I paid has not come back to me.",
            "Refund please: one pair of boots, paid in cash on Saturday.",
        ),
    ),
    RoutingRule(
        code="H-91",
        condition="someone cannot log in and has forgotten the password",
        subject_words=("log", "sign", "account", "access"),
        detail_words=("password", "forgot"),
        messages=(
            "I cannot log in, I have forgotten my password.",
            "Which password did I choose? I do not remember it and cannot get into my account.",
            "My login fails because I no longer know the password.",
            "I changed my password in spring and have forgotten it, so I am locked out.",
            "Please let me in again, the password has slipped my mind.",
            "I cannot sign in on the new laptop and forgot what my password was.",
            "I have tried six passwords and none is right, I must have forgotten it.",
            "The old computer knew my password, I do not. How do I log in?",
            "Logging in does not work any more, I have lost the note with my password.",
            "My phone number is the same, but I forgot the password and cannot log in.",
        ),
    ),
    RoutingRule(
        code="L-36",
        condition="someone cannot log in and has a new phone number",
        subject_words=("log", "sign", "account", "access"),
        detail_words=("phone", "number"),
        messages=(
            "I cannot log in because the code goes to my old phone number.",
            "I have a new phone number and now your login text message never reaches me.",
            "My number changed last month, so I cannot get into my account.",
            "The password is right, but the confirmation is sent to a phone number that I gave up.",
            "How do I sign in if I no longer have the phone number that you have on file?",
            "I switched providers, got a new number, and cannot log in any more.",
            "Login fails: you text the code to a phone number that is not mine any longer.",
            "I moved abroad and have another phone number, please let me into my account again.",
            "I know my password. It is the new phone number that keeps me from logging in.",
            "My account asks for a code by text message, but my phone number is a new one.",
        ),
    ),
    RoutingRule(
        code="V-75",
        condition="someone asks about an invoice and it shows the wrong name",
        subject_words=("invoice", "bill"),
        detail_words=("name",),
        messages=(
            "The invoice is made out to the wrong name, I am Petra, not Peter.",
            "Please correct the name on my invoice.",
            "My bill shows my maiden name, I need it with my married name.",
            "You misspelled our company name on the invoice.",
            "The invoice carries my neighbour's name instead of mine.",
            "I need a new invoice, the name on it is not right.",
            "The amount is correct but the name at the top of the invoice is wrong.",
            "Whose name is that on my invoice? It is not mine.",
            "Could you send the bill again with my full name, the last name is missing.",
            "The name on the invoice must be that of my firm, not my own.",
        ),
    ),
    RoutingRule(
        code="N-20",
        condition="someone asks about an invoice and it shows the wrong amount",
        subject_words=("invoice", "bill"),
        detail_words=("amount", "total", "sum"),
        messages=(
            "The amount on the invoice is higher than the price in your shop.",
            "I was billed for three lamps and bought two, the amount is wrong.",
            "Please check my invoice, the amount does not fit the order.",
            "My name is right, but the invoice has the wrong amount.",
            "Your invoice leaves out the discount, so the amount is too high.",
            "The bill says 89, we agreed on 79. Please correct the amount.",
            "The total amount of my invoice is not the sum of its lines.",
            "Shipping was free, yet the amount on the invoice includes it.",
            "I got an invoice with double the amount that I expected.",
            "The invoice amount is off by ten, can you send a correct one?",
        ),
    ),
    RoutingRule(
        code="F-88",
        condition="someone wants to cancel a subscription because it costs too much",
        subject_words=("subscri", "cancel", "member"),
        detail_words=("cost", "price", "expens", "much", "money"),
        messages=(
            "I want to cancel my subscription, it has become too expensive.",
            "Please end my coffee subscription, the new price is too high for me.",
            "I can no longer afford the monthly box, cancel it please.",
            "Your price increase is why I cancel my subscription today.",
            "Cancel my membership, it costs more than it is worth to me.",
            "The subscription costs too much since January, so please stop it.",
            "I am cutting my spending and want to cancel the magazine subscription.",
            "Please cancel, another shop offers the same subscription at half the price.",
            "I like the subscription but not the price. Cancel it, please.",
            "It is simply too much money every month: cancel my subscription.",
        ),
    ),
    RoutingRule(
        code="S-13",
        condition="someone wants to cancel a subscription because they move abroad",
        subject_words=("subscri", "cancel", "member"),
        detail_words=("abroad", "move", "moving", "country"),
        messages=(
            "I am moving to Canada and want to cancel my subscription.",
            "Please cancel the flower subscription, we move abroad in May.",
            "I leave the country next month, so my membership has to end.",
            "Since I will live abroad from June, please stop my subscription.",
            "We are relocating to Japan, please cancel the monthly box.",
            "My job takes me to Brazil for good. Cancel my subscription, please.",
            "The price is fine, but I am moving abroad, so cancel my subscription.",
            "I emigrate in autumn and need to cancel the subscription to your magazine.",
            "Cancel my coffee subscription please, you do not deliver to Norway, where I move.",
            "Our family is moving overseas, please end the subscription.",
        ),
    ),
    RoutingRule(
        code="P-47",
        condition="the wrong thing came and it has the wrong size",
        subject_words=("wrong", "instead", "other", "mistake"),
        detail_words=("size",),
        messages=(
            "I ordered the shirt in size M and got size XL.",
            "You sent me shoes in size 44, I ordered 41.",
            "The colour is right but the size is wrong.",
            "These trousers are the wrong size, I wanted 32 and got 36.",
            "The gloves came in size small instead of large.",
            "Wrong size: the ring should be 54, it is 58.",
            "I got the duvet cover in the size for a single bed, I ordered the double one.",
            "The jacket that came is two sizes larger than what I ordered.",
            "The helmet has the wrong size, please swap it for a medium.",
            "I ordered a rug of 2 by 3 metres, you sent the smaller size.",
        ),
    ),
    RoutingRule(
        code="W-66",
        condition="the wrong thing came and it has the wrong colour",
        subject_words=("wrong", "instead", "other", "mistake"),
        detail_words=("colour", "color"),
        messages=(
            "I ordered the lamp in blue and got a red one.",
            "The curtains came in grey, the colour I ordered is green.",
            "The size fits, but the colour is wrong.",
            "You sent the backpack in another colour than the one I chose.",
            "Wrong colour: I wanted the black kettle and got the white one.",
            "The sofa cover should be beige, what came is bright yellow.",
            "I received the yarn in a different colour from my order.",
            "My order says brown boots, in the box are black ones.",
            "The phone case has the wrong colour, pink instead of silver.",
            "Please exchange the towels, I ordered them in white and they are purple.",
        ),
    ),
    RoutingRule(
        code="G-05",
        condition="someone wants another delivery address and the parcel is already on its way",
        subject_words=("address",),
        detail_words=("way", "ship", "sent", "transit", "left"),
        messages=(
            "My parcel is already on its way, can it still go to another address?",
            "You shipped it this morning, but I gave my old address. Please redirect it.",
            "The order has left your warehouse and I need it at my office address instead.",
            "Tracking says in transit, but I want a different delivery address.",
            "Can the driver bring it to my neighbour's address? It is out for delivery.",
            "I typed the wrong house number and the parcel has been sent already.",
            "The package is with the courier now, please change the address to Hill Street 4.",
            "It was dispatched yesterday, can I still change where it is delivered to?",
            "Too late, I know, it is on its way, but the address is wrong.",
            "Please send the parcel that is in transit to my sister's address.",
        ),
    ),
    RoutingRule(
        code="Z-32",
        condition="someone wants another delivery address and the parcel has not been sent yet",
        subject_words=("address",),
        detail_words=("not ", "yet", "before", "n't"),
        messages=(
            "My order has not been sent yet, please use my work address.",
            "Before you ship it, change the delivery address to Mill Lane 9.",
            "The parcel is still being packed and I gave the wrong address.",
            "I just ordered and noticed that the address is my old one, please change it before it goes out.",
            "The status is still open, so please deliver to another address.",
            "Please correct the street of my delivery address, the order has not left yet.",
            "You have not dispatched it, so can it go to my parents' address?",
            "I want to change the address of the order that ships only next week.",
            "It is a preorder that is not sent yet, and I have a new address.",
            "The order waits in your warehouse. Send it to the address of my office instead.",
        ),
    ),
)
"""Sixteen rules of eight subjects, siblings next to each other."""


def keeps_rule(text: str, rule: RoutingRule) -> bool:
    """Say whether one line of a text names the rule's code together with both parts of its condition."""
    return any(
        rule.code in line
        and any(word in line.lower() for word in rule.subject_words)
        and any(word in line.lower() for word in rule.detail_words)
        for line in text.splitlines()
    )
